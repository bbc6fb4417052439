/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-policy-1: what the site allows and wants. Plain data; deciding is done in policies/.
 *
 * A site's policy is a set of files, in the order of their names. Rules are kept in that order. A rule gives some terms; what it does not
 * give comes from `defaults`, then from hspmd_policy_builtin. A field of defaults may be set by several files only to one value, so that
 * no order of files has to be known to read it.
 */
#ifndef HSPMD_FORMAT_POLICY_H
#define HSPMD_FORMAT_POLICY_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"

#define HSPMD_POLICY_FORMAT "hspmd-policy-1"
#define HSPMD_POLICY_MAX_FILE (1 << 20) /* bytes; a larger file is refused */
#define HSPMD_POLICY_NAME_MAX 64        /* of a rule */

enum hspmd_for_pending { HSPMD_PENDING_NONE, HSPMD_PENDING_HIGHER, HSPMD_PENDING_ANY };
extern const char *const hspmd_for_pending_names[]; /* "none", "higher_priority", "any" */
/* What a gain is counted in when jobs are compared: tokens per second, these over what the job makes on its fewest nodes, or the logarithm
 * of its rate. */
enum hspmd_share_by { HSPMD_SHARE_TOKENS, HSPMD_SHARE_RELATIVE, HSPMD_SHARE_PROPORTIONAL };
extern const char *const hspmd_share_by_names[]; /* "tokens", "relative", "proportional" */

struct hspmd_policy_list {
	int count;
	char **items;
};

struct hspmd_policy_terms {
	uint64_t given; /* bit i: field i of hspmd_policy_fields was given */
	/* limits; INT_MAX, INFINITY and an empty list: no limit */
	int max_nodes, max_devices, max_jobs_per_user;
	double max_price_per_hour;
	struct hspmd_policy_list device_types;
	/* plan */
	double cost_weight; /* between speed (0) and cost (1) */
	/* grow */
	bool into_idle;
	int reserve_nodes;
	double after_idle_s, grow_cooldown_s, min_gain;
	/* shrink */
	enum hspmd_for_pending for_pending;
	bool yield_before_preemption;
	double shrink_cooldown_s;
	/* straggler */
	double slower_than, slower_for_s, back_below;
	/* checkpoint; NULL and INFINITY: left to the job */
	char *local, *shared;
	double max_interval_s;
	int min_replicas;
	/* share */
	double weight;
	enum hspmd_share_by by;
	bool rebalance; /* take nodes from one elastic job for another where that gains more */
};

/* What a field is: one row, and reading, checking, writing, falling back and explaining know it. */
enum hspmd_policy_kind {
	HSPMD_POLICY_INT,
	HSPMD_POLICY_NUMBER,
	HSPMD_POLICY_BOOL,
	HSPMD_POLICY_ENUM,
	HSPMD_POLICY_PATH,
	HSPMD_POLICY_NAMES
};

struct hspmd_policy_field {
	const char *section, *key;
	enum hspmd_policy_kind kind;
	size_t offset; /* in struct hspmd_policy_terms */
	double min, max;
	const char *const *names; /* HSPMD_POLICY_ENUM */
};
extern const struct hspmd_policy_field hspmd_policy_fields[]; /* in the order in which hspmd-policy(5) lists them; sections lie together */
extern const int hspmd_policy_field_count;
extern const struct hspmd_policy_terms hspmd_policy_builtin; /* what holds where no file says anything; owns nothing */

/* Patterns as fnmatch(3). An empty list fits anything; an empty `policy` stands for "default" and the rule's own name. */
struct hspmd_policy_match {
	struct hspmd_policy_list partition, account, user, qos, policy;
};

struct hspmd_policy_rule {
	char *name, *about; /* about may be NULL */
	int file;           /* index into files */
	struct hspmd_policy_match match;
	struct hspmd_policy_terms terms;
};

struct hspmd_policy {
	int file_count, rule_count;
	char **files; /* names without folder, as messages say them */
	struct hspmd_policy_rule *rules;
	struct hspmd_policy_terms defaults;
	int *defaults_file; /* per field: the file that gave it, -1: none */
};

/* Whose files are believed: root's and `owner`'s. */
struct hspmd_policy_trust {
	uid_t owner;
};

/* An empty set. */
struct hspmd_policy *hspmd_policy_create(struct hspmd_error *err);
void hspmd_policy_destroy(struct hspmd_policy *p);
/* Add one file's rules and defaults. On failure the set is as it was. */
int hspmd_policy_add_json(struct hspmd_policy *p, json_t *value, const char *name, struct hspmd_error *err);
int hspmd_policy_add_text(struct hspmd_policy *p, const char *text, size_t length, const char *name, struct hspmd_error *err);
/* A file that everybody may write is always refused; with trust, also one that is not root's or the owner's, that a group other than
 * root's may write, and (in a folder) a link that leads out of it. What was checked is what is read: one open file. */
int hspmd_policy_add_file(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);

/* Add a folder's *.json (hidden ones left out) in the order of their names, or one file. The folder itself is checked as a file is. On
 * failure some of its files may have been added. */
int hspmd_policy_add_path(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);
/* The set of one path. An empty folder is an empty set. */
struct hspmd_policy *hspmd_policy_read(const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);

/* As the plugin names them to a job (HSPMD_POLICIES): "UID@PATH", where only files of that user and of root are believed; a path alone:
 * anybody's. */
struct hspmd_policy *hspmd_policy_read_named(const char *where, struct hspmd_error *err);

/* Do the rules make sense with what they take from elsewhere? 0, or -1 with file and place of the first that does not. The readers of whole
 * sets check it; who adds file by file does when all are there. */
int hspmd_policy_check(const struct hspmd_policy *p, struct hspmd_error *err);

/* What holds under a rule (-1: the defaults alone). Strings and lists are borrowed from p. `given` says what any file gave. */
struct hspmd_policy_terms hspmd_policy_effective(const struct hspmd_policy *p, int rule);
/* Where a field's value comes from, for people: "policy spot (20-spot.json)", "site default (00-site.json)", "built-in default". Returns
 * buf. */
const char *hspmd_policy_source(const struct hspmd_policy *p, int rule, int field, char *buf, size_t size);
/* Number of a field, as "limits", "max_nodes"; -1: none. */
int hspmd_policy_field(const char *section, const char *key);

/* One document with all rules and defaults of the set. New reference; NULL when memory is short. */
json_t *hspmd_policy_to_json(const struct hspmd_policy *p);
/* The terms as the file nests them, fields in `mask` only. */
json_t *hspmd_policy_terms_to_json(const struct hspmd_policy_terms *t, uint64_t mask);
/* Bytes that a field takes in the terms. */
size_t hspmd_policy_field_size(int field);
/* One field's value; new reference. JSON null for "no limit" and "not given". */
json_t *hspmd_policy_value(const struct hspmd_policy_terms *t, int field);

#endif
