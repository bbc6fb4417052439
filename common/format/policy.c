/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/policy.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/job.h"
#include "common/format/week_times.h"
#include "common/json.h"

const char *const hspmd_for_pending_names[] = { "none", "higher_priority", "any", NULL };
const char *const hspmd_share_by_names[] = { "tokens", "relative", "proportional", NULL };

#define MAX_SECONDS (366.0 * 86400)
#define AT(member) offsetof(struct hspmd_policy_terms, member)

const struct hspmd_policy_field hspmd_policy_fields[] = {
	{ "limits", "max_nodes", HSPMD_POLICY_INT, AT(max_nodes), 1, 1 << 20, NULL },
	{ "limits", "max_devices", HSPMD_POLICY_INT, AT(max_devices), 1, 1 << 24, NULL },
	{ "limits", "device_types", HSPMD_POLICY_NAMES, AT(device_types), 1, 1024, NULL },
	{ "limits", "max_jobs_per_user", HSPMD_POLICY_INT, AT(max_jobs_per_user), 0, 1 << 20, NULL },
	{ "limits", "max_price_per_hour", HSPMD_POLICY_NUMBER, AT(max_price_per_hour), 0, 1e9, NULL },
	{ "plan", "cost_weight", HSPMD_POLICY_NUMBER, AT(cost_weight), 0, 1, NULL },
	{ "grow", "into_idle", HSPMD_POLICY_BOOL, AT(into_idle), 0, 0, NULL },
	{ "grow", "reserve_nodes", HSPMD_POLICY_INT, AT(reserve_nodes), 0, 1 << 20, NULL },
	{ "grow", "after_idle_s", HSPMD_POLICY_NUMBER, AT(after_idle_s), 0, MAX_SECONDS, NULL },
	{ "grow", "cooldown_s", HSPMD_POLICY_NUMBER, AT(grow_cooldown_s), 0, MAX_SECONDS, NULL },
	{ "grow", "min_gain", HSPMD_POLICY_NUMBER, AT(min_gain), 0, 100, NULL },
	{ "grow", "qos", HSPMD_POLICY_NAME, AT(grow_qos), 0, 0, NULL },
	{ "grow", "partition", HSPMD_POLICY_NAME, AT(grow_partition), 0, 0, NULL },
	{ "grow", "time_min_s", HSPMD_POLICY_NUMBER, AT(time_min_s), 0, MAX_SECONDS, NULL },
	{ "grow", "min_life_s", HSPMD_POLICY_NUMBER, AT(min_life_s), 0, MAX_SECONDS, NULL },
	{ "grow", "budget_node_hours", HSPMD_POLICY_NUMBER, AT(budget_node_hours), 0, 1e9, NULL },
	{ "grow", "budget_days", HSPMD_POLICY_INT, AT(budget_days), 1, 366, NULL },
	{ "shrink", "for_pending", HSPMD_POLICY_ENUM, AT(for_pending), 0, 0, hspmd_for_pending_names },
	{ "shrink", "yield_before_preemption", HSPMD_POLICY_BOOL, AT(yield_before_preemption), 0, 0, NULL },
	{ "shrink", "cooldown_s", HSPMD_POLICY_NUMBER, AT(shrink_cooldown_s), 0, MAX_SECONDS, NULL },
	{ "straggler", "slower_than", HSPMD_POLICY_NUMBER, AT(slower_than), 1, 1000, NULL },
	{ "straggler", "for_s", HSPMD_POLICY_NUMBER, AT(slower_for_s), 0, MAX_SECONDS, NULL },
	{ "straggler", "back_below", HSPMD_POLICY_NUMBER, AT(back_below), 1, 1000, NULL },
	{ "checkpoint", "local", HSPMD_POLICY_PATH, AT(local), 0, 0, NULL },
	{ "checkpoint", "shared", HSPMD_POLICY_PATH, AT(shared), 0, 0, NULL },
	{ "checkpoint", "max_interval_s", HSPMD_POLICY_NUMBER, AT(max_interval_s), 1, MAX_SECONDS, NULL },
	{ "checkpoint", "min_replicas", HSPMD_POLICY_INT, AT(min_replicas), 0, 1024, NULL },
	{ "share", "weight", HSPMD_POLICY_WEIGHT, AT(weight), 1e-6, 1e6, NULL },
	{ "share", "by", HSPMD_POLICY_ENUM, AT(by), 0, 0, hspmd_share_by_names },
	{ "share", "rebalance", HSPMD_POLICY_BOOL, AT(rebalance), 0, 0, NULL },
};
const int hspmd_policy_field_count = (int)(sizeof hspmd_policy_fields / sizeof *hspmd_policy_fields);
_Static_assert(sizeof hspmd_policy_fields / sizeof *hspmd_policy_fields <= 64, "terms.given has a bit for each field");

const struct hspmd_policy_terms hspmd_policy_builtin = {
	.max_nodes = INT_MAX,
	.max_devices = INT_MAX,
	.max_jobs_per_user = INT_MAX,
	.max_price_per_hour = INFINITY,
	.after_idle_s = 60,
	.grow_cooldown_s = 120,
	.min_gain = 0.05,
	.budget_node_hours = INFINITY,
	.budget_days = 30,
	.shrink_cooldown_s = 60,
	.slower_than = 1.2,
	.slower_for_s = 30,
	.back_below = 1.1,
	.max_interval_s = INFINITY,
	.weight = 1,
};

size_t hspmd_policy_field_size(int field)
{
	static const size_t sizes[] = { [HSPMD_POLICY_INT] = sizeof(int),       [HSPMD_POLICY_NUMBER] = sizeof(double),
		                        [HSPMD_POLICY_WEIGHT] = sizeof(double), [HSPMD_POLICY_BOOL] = sizeof(bool),
		                        [HSPMD_POLICY_ENUM] = sizeof(int),      [HSPMD_POLICY_PATH] = sizeof(char *),
		                        [HSPMD_POLICY_NAME] = sizeof(char *),   [HSPMD_POLICY_NAMES] = sizeof(struct hspmd_policy_list) };
	return sizes[hspmd_policy_fields[field].kind];
}

static void *member(const struct hspmd_policy_terms *t, int field)
{
	return (char *)t + hspmd_policy_fields[field].offset;
}

/* ---- lists and destruction */

static void list_clear(struct hspmd_policy_list *l)
{
	for (int i = 0; i < l->count; i++)
		free(l->items[i]);
	free(l->items);
	*l = (struct hspmd_policy_list){ 0 };
}

static void terms_clear(struct hspmd_policy_terms *t)
{
	list_clear(&t->device_types);
	free(t->grow_qos);
	free(t->grow_partition);
	free(t->local);
	free(t->shared);
	memset(t, 0, sizeof *t);
}

static void rule_clear(struct hspmd_policy_rule *r)
{
	free(r->name);
	free(r->about);
	list_clear(&r->match.partition);
	list_clear(&r->match.account);
	list_clear(&r->match.user);
	list_clear(&r->match.qos);
	list_clear(&r->match.policy);
	list_clear(&r->match.times);
	terms_clear(&r->terms);
}

struct hspmd_policy *hspmd_policy_create(struct hspmd_error *err)
{
	struct hspmd_policy *p = hspmd_calloc(1, sizeof *p);
	int *from = hspmd_calloc((size_t)hspmd_policy_field_count, sizeof *from);
	if (!p || !from) {
		free(p);
		free(from);
		hspmd_fail_memory(err, "making a policy set");
		return NULL;
	}
	for (int i = 0; i < hspmd_policy_field_count; i++)
		from[i] = -1;
	p->defaults_file = from;
	return p;
}

void hspmd_policy_destroy(struct hspmd_policy *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->file_count; i++)
		free(p->files[i]);
	for (int i = 0; i < p->rule_count; i++)
		rule_clear(&p->rules[i]);
	free(p->files);
	free(p->rules);
	terms_clear(&p->defaults);
	free(p->defaults_file);
	free(p);
}

/* ---- reading */

static char *text_copy(struct hspmd_json *at, const char *text)
{
	char *copy = text ? strdup(text) : NULL;
	if (text && !copy)
		hspmd_json_fail(at, "out of memory");
	return copy;
}

static void read_list(struct hspmd_json *obj, const char *key, struct hspmd_policy_list *out)
{
	struct hspmd_json array = hspmd_json_array_or_none(obj, key, 1, 1024);
	size_t n = hspmd_json_length(&array);
	if (!n)
		return;
	out->items = hspmd_calloc(n, sizeof *out->items);
	if (!out->items) {
		hspmd_json_fail(&array, "out of memory");
		return;
	}
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&array, i);
		const char *text = hspmd_json_string_value(&at);
		for (int k = 0; text && k < out->count; k++)
			if (!strcmp(out->items[k], text)) {
				hspmd_json_fail(&at, "\"%s\" is named twice", text);
				return;
			}
		char *copy = text_copy(&at, text);
		if (!copy)
			return;
		out->items[out->count++] = copy;
	}
}

static double read_weight(struct hspmd_json *section, const struct hspmd_policy_field *f)
{
	struct hspmd_json at = hspmd_json_any(section, f->key);
	if (!json_is_string(at.value))
		return hspmd_json_number(section, f->key, f->min, f->max);
	const char *word = hspmd_json_string_value(&at);
	if (word && strcmp(word, "fairshare") != 0)
		hspmd_json_fail(&at, "expected a number or \"fairshare\", got \"%s\"", word);
	return HSPMD_POLICY_FAIRSHARE;
}

static void read_field(struct hspmd_json *section, int field, struct hspmd_policy_terms *t)
{
	const struct hspmd_policy_field *f = &hspmd_policy_fields[field];
	void *to = member(t, field);
	if (!hspmd_json_has(section, f->key))
		return;
	t->given |= UINT64_C(1) << field;
	switch (f->kind) {
	case HSPMD_POLICY_INT:
		*(int *)to = (int)hspmd_json_int(section, f->key, (int64_t)f->min, (int64_t)f->max);
		break;
	case HSPMD_POLICY_NUMBER:
		*(double *)to = hspmd_json_number(section, f->key, f->min, f->max);
		break;
	case HSPMD_POLICY_WEIGHT:
		*(double *)to = read_weight(section, f);
		break;
	case HSPMD_POLICY_BOOL:
		*(bool *)to = hspmd_json_bool_or(section, f->key, false);
		break;
	case HSPMD_POLICY_ENUM:
		*(int *)to = hspmd_json_enum(section, f->key, f->names);
		break;
	case HSPMD_POLICY_PATH: {
		struct hspmd_json at = hspmd_json_any(section, f->key);
		const char *path = hspmd_json_string_value(&at);
		struct hspmd_error why;
		if (path && hspmd_job_check_path(path, &why))
			hspmd_json_fail(&at, "%s", why.text);
		else if (path && *path != '/' && strncmp(path, "$HOME", 5) && strncmp(path, "${HOME}", 7))
			hspmd_json_fail(&at, "expected an absolute path, got \"%s\"", path);
		else
			*(char **)to = text_copy(&at, path);
		break;
	}
	case HSPMD_POLICY_NAME: {
		struct hspmd_json at = hspmd_json_any(section, f->key);
		const char *name = hspmd_json_string_value(&at);
		if (name && (!*name || strpbrk(name, ", \t\n'\"")))
			hspmd_json_fail(&at, "expected one name, got \"%s\"", name);
		else
			*(char **)to = text_copy(&at, name);
		break;
	}
	case HSPMD_POLICY_NAMES:
		read_list(section, f->key, to);
		break;
	}
}

/* Enumerated values are read and written as int. */
_Static_assert(sizeof(enum hspmd_for_pending) == sizeof(int) && sizeof(enum hspmd_share_by) == sizeof(int), "enums are ints");

static bool given(const struct hspmd_policy_terms *t, const void *at)
{
	for (int i = 0; i < hspmd_policy_field_count; i++)
		if (member(t, i) == at)
			return t->given >> i & 1;
	return false;
}

/* Fail at section.key of what `obj` is. */
__attribute__((format(printf, 4, 5))) static void fail_term(struct hspmd_json *obj, const char *section, const char *key, const char *fmt,
                                                            ...)
{
	char text[300];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	struct hspmd_json of = hspmd_json_any(obj, section), at = hspmd_json_any(&of, key);
	hspmd_json_fail(&at, "%s", text);
}

/* Contradictions within one object. */
static void check_terms(struct hspmd_json *obj, const struct hspmd_policy_terms *t)
{
	if (given(t, &t->max_nodes) && given(t, &t->max_devices) && t->max_devices < t->max_nodes)
		fail_term(obj, "limits", "max_devices",
		          "expected at least limits.max_nodes (%d), as every node has at least one device, got %d", t->max_nodes,
		          t->max_devices);
	if (given(t, &t->slower_than) && given(t, &t->back_below) && t->back_below >= t->slower_than)
		fail_term(obj, "straggler", "back_below", "expected less than straggler.slower_than (%g), got %g", t->slower_than,
		          t->back_below);
	if (given(t, &t->for_pending) && t->for_pending == HSPMD_PENDING_NONE && t->yield_before_preemption)
		fail_term(obj, "shrink", "yield_before_preemption", "contradicts shrink.for_pending \"none\"");
	if (given(t, &t->max_nodes) && given(t, &t->min_replicas) && t->min_replicas >= t->max_nodes)
		fail_term(obj, "checkpoint", "min_replicas",
		          "expected less than limits.max_nodes (%d), as each copy lies on another node, got %d", t->max_nodes,
		          t->min_replicas);
}

static void read_terms(struct hspmd_json *obj, struct hspmd_policy_terms *t)
{
	for (int i = 0; i < hspmd_policy_field_count;) {
		const char *name = hspmd_policy_fields[i].section;
		struct hspmd_json section = hspmd_json_object_or_none(obj, name);
		bool there = section.value != NULL;
		for (; i < hspmd_policy_field_count && !strcmp(hspmd_policy_fields[i].section, name); i++)
			if (there)
				read_field(&section, i, t);
		if (there)
			hspmd_json_check_keys(&section);
	}
	if (!hspmd_json_failed(obj))
		check_terms(obj, t);
}

static void read_times(struct hspmd_json *obj, struct hspmd_policy_list *times)
{
	read_list(obj, "times", times);
	for (int i = 0; i < times->count; i++) {
		const char *wrong = hspmd_week_times_check(times->items[i]);
		if (!wrong)
			continue;
		struct hspmd_json array = hspmd_json_any(obj, "times"), at = hspmd_json_at(&array, (size_t)i);
		hspmd_json_fail(&at, "%s, got \"%s\"", wrong, times->items[i]);
	}
}

static void read_match(struct hspmd_json *rule, struct hspmd_policy_match *m)
{
	struct hspmd_json obj = hspmd_json_object_or_none(rule, "match");
	if (!obj.value)
		return;
	read_list(&obj, "partition", &m->partition);
	read_list(&obj, "account", &m->account);
	read_list(&obj, "user", &m->user);
	read_list(&obj, "qos", &m->qos);
	read_list(&obj, "policy", &m->policy);
	read_times(&obj, &m->times);
	hspmd_json_check_keys(&obj);
}

static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

static void read_name(struct hspmd_json *rule, char **name)
{
	struct hspmd_json at = hspmd_json_any(rule, "name");
	if (!at.value) {
		hspmd_json_fail(rule, "name is missing");
		return;
	}
	const char *text = hspmd_json_string_value(&at);
	if (!text)
		return;
	size_t n = strlen(text);
	if (!n || n > HSPMD_POLICY_NAME_MAX || strspn(text, name_chars) != n)
		hspmd_json_fail(&at, "expected 1..%d letters, digits, '.', '_' or '-', got \"%.80s\"", HSPMD_POLICY_NAME_MAX, text);
	else
		*name = text_copy(&at, text);
}

static void read_rule(struct hspmd_json *obj, const struct hspmd_policy *p, struct hspmd_policy_rule *r)
{
	if (!hspmd_json_expect_object(obj))
		return;
	read_name(obj, &r->name);
	struct hspmd_json at = hspmd_json_any(obj, "name");
	for (int i = 0; r->name && i < p->rule_count; i++)
		if (!strcmp(p->rules[i].name, r->name))
			hspmd_json_fail(&at, "a rule \"%s\" is in %s already", r->name, p->files[p->rules[i].file]);
	r->about = text_copy(obj, hspmd_json_string_or(obj, "about", NULL));
	read_match(obj, &r->match);
	read_terms(obj, &r->terms);
	hspmd_json_check_keys(obj);
}

/* Take the fields of a file's defaults that the set does not have yet; if both give a field, the values must be equal. */
static int merge_defaults(struct hspmd_policy *p, struct hspmd_policy_terms *d, struct hspmd_json *root, int file)
{
	for (int i = 0; i < hspmd_policy_field_count; i++) {
		if (!(d->given & p->defaults.given & UINT64_C(1) << i))
			continue;
		const struct hspmd_policy_field *f = &hspmd_policy_fields[i];
		json_t *old = hspmd_policy_value(&p->defaults, i), *new = hspmd_policy_value(d, i);
		bool same = old && new &&json_equal(old, new);
		json_decref(old);
		json_decref(new);
		if (!same)
			return hspmd_json_fail(root, "defaults.%s.%s: differs from what %s gives", f->section, f->key,
			                       p->files[p->defaults_file[i]]);
	}
	for (int i = 0; i < hspmd_policy_field_count; i++) {
		uint64_t bit = UINT64_C(1) << i;
		if (!(d->given & bit) || p->defaults.given & bit)
			continue;
		memcpy(member(&p->defaults, i), member(d, i), hspmd_policy_field_size(i));
		memset(member(d, i), 0, hspmd_policy_field_size(i)); /* owned by the set now */
		p->defaults.given |= bit;
		p->defaults_file[i] = file;
	}
	return 0;
}

/* Make room for one more file and n more rules; existing pointers stay valid. */
static int reserve(struct hspmd_policy *p, size_t n)
{
	char **files = realloc(p->files, ((size_t)p->file_count + 1) * sizeof *files);
	if (!files)
		return -1;
	p->files = files;
	struct hspmd_policy_rule *rules = realloc(p->rules, ((size_t)p->rule_count + n + 1) * sizeof *rules);
	if (!rules)
		return -1;
	p->rules = rules;
	memset(rules + p->rule_count, 0, (n + 1) * sizeof *rules);
	return 0;
}

static int add_document(struct hspmd_policy *p, struct hspmd_json_doc *doc, const char *name)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct hspmd_policy_terms defaults = { 0 };
	int old_rules = p->rule_count, file = p->file_count;
	if (hspmd_json_format(&root, HSPMD_POLICY_FORMAT) < 0)
		return -1;
	(void)hspmd_json_string_or(&root, "about", NULL);
	struct hspmd_json obj = hspmd_json_object_or_none(&root, "defaults");
	if (obj.value) {
		read_terms(&obj, &defaults);
		hspmd_json_check_keys(&obj);
	}
	struct hspmd_json rules = hspmd_json_array_or_none(&root, "rules", 0, 4096);
	size_t n = hspmd_json_length(&rules);
	if (reserve(p, n) < 0 || !(p->files[file] = strdup(name))) {
		terms_clear(&defaults);
		return hspmd_json_fail(&root, "out of memory");
	}
	p->file_count++;
	for (size_t i = 0; i < n && !hspmd_json_failed(&root); i++) {
		struct hspmd_json at = hspmd_json_at(&rules, i);
		struct hspmd_policy_rule *r = &p->rules[old_rules + (int)i];
		r->file = file;
		read_rule(&at, p, r);
		p->rule_count++;
	}
	hspmd_json_check_keys(&root);
	int rc = hspmd_json_failed(&root) ? -1 : merge_defaults(p, &defaults, &root, file);
	terms_clear(&defaults);
	if (rc < 0) {
		while (p->rule_count > old_rules)
			rule_clear(&p->rules[--p->rule_count]);
		free(p->files[--p->file_count]);
	}
	return rc;
}

int hspmd_policy_add_json(struct hspmd_policy *p, json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_wrap(&doc, name, value, err) < 0)
		return -1;
	int rc = add_document(p, &doc, name);
	hspmd_json_close(&doc);
	return rc;
}

int hspmd_policy_add_text(struct hspmd_policy *p, const char *text, size_t length, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_parse(&doc, name, text, length, err) < 0)
		return -1;
	int rc = add_document(p, &doc, name);
	hspmd_json_close(&doc);
	return rc;
}

/* ---- writing */

static json_t *list_json(const struct hspmd_policy_list *l)
{
	json_t *array = json_array();
	for (int i = 0; array && i < l->count; i++)
		if (json_array_append_new(array, json_string(l->items[i])) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

json_t *hspmd_policy_value(const struct hspmd_policy_terms *t, int field)
{
	const struct hspmd_policy_field *f = &hspmd_policy_fields[field];
	const void *at = member(t, field);
	switch (f->kind) {
	case HSPMD_POLICY_INT:
		return *(const int *)at == INT_MAX ? json_null() : json_integer(*(const int *)at);
	case HSPMD_POLICY_WEIGHT:
		return *(const double *)at == HSPMD_POLICY_FAIRSHARE ? json_string("fairshare") : json_real(*(const double *)at);
	case HSPMD_POLICY_NUMBER:
		return isinf(*(const double *)at) ? json_null() : json_real(*(const double *)at);
	case HSPMD_POLICY_BOOL:
		return json_boolean(*(const bool *)at);
	case HSPMD_POLICY_ENUM:
		return json_string(f->names[*(const int *)at]);
	case HSPMD_POLICY_PATH:
	case HSPMD_POLICY_NAME:
		return *(char *const *)at ? json_string(*(char *const *)at) : json_null();
	case HSPMD_POLICY_NAMES:
		return ((const struct hspmd_policy_list *)at)->count ? list_json(at) : json_null();
	}
	return NULL;
}

static int put_terms(json_t *out, const struct hspmd_policy_terms *t, uint64_t mask)
{
	for (int i = 0; i < hspmd_policy_field_count; i++) {
		const struct hspmd_policy_field *f = &hspmd_policy_fields[i];
		if (!(mask >> i & 1))
			continue;
		json_t *section = json_object_get(out, f->section);
		if (!section && json_object_set_new(out, f->section, section = json_object()) < 0)
			return -1;
		if (json_object_set_new(section, f->key, hspmd_policy_value(t, i)) < 0)
			return -1;
	}
	return 0;
}

json_t *hspmd_policy_terms_to_json(const struct hspmd_policy_terms *t, uint64_t mask)
{
	json_t *out = json_object();
	if (out && put_terms(out, t, mask) < 0) {
		json_decref(out);
		return NULL;
	}
	return out;
}

static json_t *match_json(const struct hspmd_policy_match *m)
{
	const struct {
		const char *key;
		const struct hspmd_policy_list *list;
	} parts[] = { { "partition", &m->partition }, { "account", &m->account }, { "user", &m->user }, { "qos", &m->qos },
		      { "policy", &m->policy },       { "times", &m->times } };
	json_t *out = json_object();
	for (size_t i = 0; out && i < sizeof parts / sizeof *parts; i++)
		if (parts[i].list->count && json_object_set_new(out, parts[i].key, list_json(parts[i].list)) < 0) {
			json_decref(out);
			return NULL;
		}
	return out;
}

static json_t *rule_json(const struct hspmd_policy_rule *r)
{
	json_t *out = json_pack("{s:s}", "name", r->name);
	if (!out || (r->about && json_object_set_new(out, "about", json_string(r->about)) < 0) ||
	    json_object_set_new(out, "match", match_json(&r->match)) < 0 || put_terms(out, &r->terms, r->terms.given) < 0) {
		json_decref(out);
		return NULL;
	}
	return out;
}

json_t *hspmd_policy_to_json(const struct hspmd_policy *p)
{
	json_t *rules = json_array();
	json_t *out = json_pack("{s:s, s:o, s:o}", "format", HSPMD_POLICY_FORMAT, "defaults",
	                        hspmd_policy_terms_to_json(&p->defaults, p->defaults.given), "rules", rules);
	for (int i = 0; out && i < p->rule_count; i++)
		if (json_array_append_new(rules, rule_json(&p->rules[i])) < 0) {
			json_decref(out);
			return NULL;
		}
	return out;
}
