/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-policy-1: what the site allows and wants. Plain data; policies/ takes the decisions.
 *
 * A site's policy is a set of files, in the order of their names. Rules keep that order. A rule gives some terms; the others come
 * from `defaults`, then from hspmd_policy_builtin. Several files may set a field of defaults only to the same value, so that nobody has to
 * know the order of files. */
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
#define HSPMD_POLICY_FAIRSHARE 0.0      /* value of a weight: "fairshare" */
#define HSPMD_FAIRSHARE_LEAST 1e-3      /* weight of a job whose owner has used far too much: none weighs nothing */

enum hspmd_for_pending { HSPMD_PENDING_NONE, HSPMD_PENDING_HIGHER, HSPMD_PENDING_ANY };
extern const char *const hspmd_for_pending_names[]; /* "none", "higher_priority", "any" */
/* The unit of gain when jobs are compared: tokens per second; tokens per second relative to the job on its fewest nodes; the logarithm of
 * the job's rate. */
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
	char *grow_qos, *grow_partition; /* of member jobs; NULL: the job's own */
	double time_min_s;               /* least time limit of member jobs; 0: as long as the job has left */
	double min_life_s;               /* for so long a node that was added is not taken for others; 0: it may be at once */
	double budget_node_hours;        /* of the rule's jobs together, on nodes that were added, in budget_days; INFINITY: no budget */
	int budget_days;
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
	double weight; /* HSPMD_POLICY_FAIRSHARE: the fairshare factor that Slurm gives the job's user and account */
	enum hspmd_share_by by;
	bool rebalance; /* take nodes from one elastic job for another that gains more by them */
};

/* Type of a field. Each field is one row of a table that reading, checking, writing, defaults and explaining use. */
enum hspmd_policy_kind {
	HSPMD_POLICY_INT,
	HSPMD_POLICY_NUMBER,
	HSPMD_POLICY_WEIGHT, /* a number, or "fairshare" */
	HSPMD_POLICY_BOOL,
	HSPMD_POLICY_ENUM,
	HSPMD_POLICY_PATH,
	HSPMD_POLICY_NAME,
	HSPMD_POLICY_NAMES
};

struct hspmd_policy_field {
	const char *section, *key;
	enum hspmd_policy_kind kind;
	size_t offset; /* in struct hspmd_policy_terms */
	double min, max;
	const char *const *names; /* HSPMD_POLICY_ENUM */
};
extern const struct hspmd_policy_field
        hspmd_policy_fields[]; /* in the order in which hspmd-policy(5) lists them; sections are contiguous */
extern const int hspmd_policy_field_count;
extern const struct hspmd_policy_terms hspmd_policy_builtin; /* the terms if no file gives any; owns nothing */

/* Patterns as in fnmatch(3). An empty list matches anything; an empty `policy` stands for "default" and the rule's own name. */
struct hspmd_policy_match {
	struct hspmd_policy_list partition, account, user, qos, policy;
	struct hspmd_policy_list times; /* no patterns: times of the week (week_times.h) */
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

/* Files of root and of `owner` are trusted. */
struct hspmd_policy_trust {
	uid_t owner;
};

/* An empty set. */
struct hspmd_policy *hspmd_policy_create(struct hspmd_error *err);
void hspmd_policy_destroy(struct hspmd_policy *p);
/* Add one file's rules and defaults. On failure the set is unchanged. */
int hspmd_policy_add_json(struct hspmd_policy *p, json_t *value, const char *name, struct hspmd_error *err);
int hspmd_policy_add_text(struct hspmd_policy *p, const char *text, size_t length, const char *name, struct hspmd_error *err);
/* A file that everybody may write is always refused. With trust, so is a file that is not root's or the owner's, that a group other than
 * root's may write, or (in a folder) a link that leads out of the folder. The checked file is the file that is read: it is opened once. */
int hspmd_policy_add_file(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);

/* Add a folder's *.json (except hidden files) in the order of their names, or one file. The folder itself is checked like a file. On
 * failure some of its files may have been added. */
int hspmd_policy_add_path(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);
/* The set of one path. An empty folder is an empty set. */
struct hspmd_policy *hspmd_policy_read(const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err);

/* Read the set in the plugin's notation (HSPMD_POLICIES): "UID@PATH" trusts files of that user and of root; a path alone trusts all. */
struct hspmd_policy *hspmd_policy_read_named(const char *where, struct hspmd_error *err);

/* Checks that rules make sense together with the values that they inherit. 0, or -1 with file and place of the first that does not. The
 * readers of whole sets call it; a caller that adds file by file calls it at the end. */
int hspmd_policy_check(const struct hspmd_policy *p, struct hspmd_error *err);

/* The terms of a rule (-1: of the defaults alone). Strings and lists are borrowed from p. `given`: the fields that any file gave. */
struct hspmd_policy_terms hspmd_policy_effective(const struct hspmd_policy *p, int rule);
/* The source of a field's value, for people: "policy spot (20-spot.json)", "site default (00-site.json)", "built-in default". Returns
 * buf. */
const char *hspmd_policy_source(const struct hspmd_policy *p, int rule, int field, char *buf, size_t size);
/* Number of the field such as "limits", "max_nodes"; -1: none. */
int hspmd_policy_field(const char *section, const char *key);

/* One document with all rules and defaults of the set. New reference; NULL when memory is short. */
json_t *hspmd_policy_to_json(const struct hspmd_policy *p);
/* The terms, nested as in the file; only fields in `mask`. */
json_t *hspmd_policy_terms_to_json(const struct hspmd_policy_terms *t, uint64_t mask);
/* Size of a field in the terms, in bytes. */
size_t hspmd_policy_field_size(int field);
/* One field's value; new reference. JSON null for "no limit" and "not given". */
json_t *hspmd_policy_value(const struct hspmd_policy_terms *t, int field);

#endif
