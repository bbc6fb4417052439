/* SPDX-License-Identifier: Apache-2.0 */
/* What a round of decisions costs hspmdctld at a large site: large_site [NODES [JOBS [RULES]]] (20,000 nodes, 10,000 jobs).
 *
 * Six jobs of ten are elastic, three are others that run, one waits; a tenth of the nodes is idle. Nodes are of 8 kinds in 3 partitions. In
 * each scene the snapshot is built from an invented view of Slurm, and decided on. Prints processor seconds of both, what was decided, and
 * a sum of it: two versions of the engine that decide alike print the same sum. RULES: a policy file instead of the scene's own. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"
#include "controller/ctld/snapshot.h"
#include "tests/bench/processor_time.h"

#define NOW 1e6
#define CURVE 64
#define KINDS 8

static uint64_t seed = 1;

static int draw(int n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (int)((seed >> 33) % (uint64_t)n);
}

static char *text(const char *fmt, int number)
{
	char *t = hspmd_asprintf(fmt, number);
	if (!t)
		exit(1);
	return t;
}

static void *zeroed(size_t count, size_t size)
{
	void *p = hspmd_calloc(count, size);
	if (!p)
		exit(1);
	return p;
}

static void make_nodes(struct hspmd_slurm_view *v, int count)
{
	static const char *const partitions[] = { "all", "fast", "slow" };
	v->nodes = zeroed((size_t)count, sizeof *v->nodes);
	v->node_count = count;
	v->partition_count = 3;
	v->partitions = zeroed(3, sizeof *v->partitions);
	for (int p = 0; p < 3; p++)
		v->partitions[p] = (struct hspmd_slurm_view_partition){ .name = strdup(partitions[p]),
			                                                .tier = 1 + (p == 1),
			                                                .up = true,
			                                                .preemptable = p == 2,
			                                                .nodes = zeroed((size_t)count, 1) };
	for (int i = 0; i < count; i++) {
		int kind = i * KINDS / count;
		v->nodes[i] = (struct hspmd_slurm_view_node){ .name = text("node%05d", i),
			                                      .cpus = 64,
			                                      .memory_mb = 512 << 10,
			                                      .features = text("rack,price:%d", 1 + kind / 2),
			                                      .gres = text(kind % 2 ? "gpu:a100:%d" : "gpu:h100:%d", kind < 4 ? 8 : 4),
			                                      .last_busy = (time_t)(NOW - 10 - draw(1000)) };
		v->partitions[0].nodes[i] = 1;
		v->partitions[1 + kind % 2].nodes[i] = 1;
	}
}

/* A job on the next `count` nodes, or a waiting one that needs so many. */
static struct hspmd_slurm_view_job *add_job(struct hspmd_slurm_view *v, int *next, int count, bool waits)
{
	struct hspmd_slurm_view_job *j = &v->jobs[v->job_count++];
	static const char *const partitions[] = { "all", "fast", "slow" };
	int of = draw(3);
	*j = (struct hspmd_slurm_view_job){ .id = 1000 + (uint32_t)v->job_count * 3,
		                            .uid = 1000 + (uid_t)draw(500),
		                            .state = waits ? HSPMD_SLURM_VIEW_PENDING : HSPMD_SLURM_VIEW_RUNNING,
		                            .ready = true,
		                            .account = text("lab%d", draw(50)),
		                            .partition = strdup(waits ? partitions[of] : "all"),
		                            .qos = strdup(""),
		                            .features = strdup(""),
		                            .tres_per_node = strdup(""),
		                            .tres = strdup(""),
		                            .nodes = count,
		                            .priority = draw(1000000),
		                            .limit_s = 3600.0 * (1 + draw(24)),
		                            .submitted = (time_t)(NOW - draw(100000)),
		                            .started = (time_t)(NOW - 20000) };
	j->user = text("user%d", (int)j->uid);
	j->ends = (time_t)(NOW + draw(100000));
	if (waits) {
		j->batch_host = strdup("");
		return j;
	}
	j->held = zeroed((size_t)count, sizeof *j->held);
	for (int i = 0; i < count && *next < v->node_count; i++) {
		v->nodes[*next].state = HSPMD_SLURM_VIEW_BUSY;
		j->held[j->held_count++] = (*next)++;
	}
	j->batch_host = strdup(j->held_count ? v->nodes[j->held[0]].name : "");
	return j;
}

static struct ctld_peer peer_of(const struct hspmd_slurm_view *v, const struct hspmd_slurm_view_job *j)
{
	struct ctld_peer p = { .job = j->id,
		               .uid = j->uid,
		               .reachable = true,
		               .min_nodes = 1,
		               .max_nodes = CURVE,
		               .fewest_nodes = j->held_count,
		               .curve_count = CURVE,
		               .curve = zeroed(CURVE, sizeof(double)),
		               .kind_count = 2,
		               .relative_speed = { 1, 1 + draw(30) / 10.0 },
		               .pause_s = 1 + draw(10),
		               .lost_s = 30,
		               .resized_s = NOW - 100 - draw(10000),
		               .declined_grow_until_s = -INFINITY,
		               .declined_shrink_until_s = -INFINITY };
	double rate = 1000 + draw(1000), power = 0.6 + draw(35) / 100.0;
	for (int i = 0; i < CURVE; i++)
		p.curve[i] = rate * pow(i + 1, power) * (draw(10) ? 1 : 0.97);
	p.tokens_per_s = p.curve[j->held_count > 0 ? j->held_count - 1 : 0];
	for (int k = 0; k < 2; k++)
		snprintf(p.kinds[k], sizeof p.kinds[k], "%s", v->nodes[k * (v->node_count / KINDS)].name);
	return p;
}

struct site {
	struct hspmd_slurm_view view;
	struct ctld_peer *peers;
	int peer_count;
	struct ctld_node_history *histories;
};

static void make_site(struct site *s, int nodes, int jobs, int waiting)
{
	int next = 0, elastic = jobs * 6 / 10, rigid = jobs * 3 / 10, most = 2 * nodes / (elastic + rigid);
	make_nodes(&s->view, nodes);
	s->view.jobs = zeroed((size_t)jobs * 2, sizeof *s->view.jobs);
	s->peers = zeroed((size_t)elastic, sizeof *s->peers);
	s->histories = zeroed((size_t)nodes, sizeof *s->histories);
	for (int i = 0; i < nodes; i++)
		s->histories[i] = (struct ctld_node_history){ .up_s = 1e6, .losses = i % 100 == 0 };
	for (int i = 0; i < elastic + rigid && next < nodes * 9 / 10; i++) {
		struct hspmd_slurm_view_job *j = add_job(&s->view, &next, 1 + draw(most > 2 ? most - 1 : 2), false);
		if (i % 3 < 2 && s->peer_count < elastic) {
			s->peers[s->peer_count] = peer_of(&s->view, j);
			/* A tenth has grown by a member job. */
			if (i % 10 == 0 && next < nodes * 9 / 10) {
				struct hspmd_slurm_view_job *m = add_job(&s->view, &next, 1, false);
				m->uid = j->uid;
				s->peers[s->peer_count].members[s->peers[s->peer_count].member_count++] = m->id;
			}
			s->peer_count++;
		}
	}
	for (int i = 0; i < waiting; i++)
		add_job(&s->view, &next, 1 + draw(i % 50 ? 8 : 400), true);
	hspmd_slurm_view_index(&s->view);
}

static uint64_t mix(uint64_t sum, const void *bytes, size_t size)
{
	return sum * UINT64_C(6364136223846793005) + hspmd_fnv1a(bytes, size);
}

static uint64_t sum_of(const struct hspmd_snapshot *s, const struct hspmd_decision *d)
{
	uint64_t sum = 1;
	for (int i = 0; i < d->count; i++) {
		const struct hspmd_resize_action *a = &d->actions[i];
		sum = mix(sum, &a->job, sizeof a->job);
		sum = mix(sum, a->nodes, (size_t)a->node_count * sizeof *a->nodes);
		sum = mix(sum, a->reason, strlen(a->reason));
	}
	for (int i = 0; i < s->elastic_count; i++)
		sum = mix(sum, d->why[i], strlen(d->why[i]));
	return sum;
}

static int measure(const char *scene, const struct site *site, const struct hspmd_policy *policy)
{
	struct hspmd_error err = { "" };
	struct ctld_snapshot s;
	struct hspmd_decision d;
	double began = processor_time();
	int rc = ctld_snapshot_build(&s, &site->view, policy, site->peers, site->peer_count, site->histories, NOW, NULL, NULL, &err);
	double built = processor_time(), decided = built;
	memset(&d, 0, sizeof d);
	if (!rc) {
		rc = hspmd_policy_decide(&s.snapshot, &d, &err);
		decided = processor_time();
	}
	int moved[2] = { 0 };
	for (int i = 0; i < d.count; i++)
		moved[d.actions[i].kind == HSPMD_RESIZE_SHRINK] += d.actions[i].node_count;
	if (rc)
		fprintf(stderr, "large_site: %s\n", err.text);
	else
		printf("%-22s %5d elastic %5d waiting %6d nodes: snapshot %7.3f s, decision %8.3f s; grow by %d, shrink by %d nodes in %d "
		       "jobs, sum %016" PRIx64 "\n",
		       scene, s.snapshot.elastic_count, s.snapshot.pending_count, s.snapshot.node_count, built - began, decided - built,
		       moved[0], moved[1], d.count, sum_of(&s.snapshot, &d));
	fflush(stdout);
	hspmd_decision_clear(&d);
	ctld_snapshot_clear(&s);
	return rc;
}

static struct hspmd_policy *policy_of(const char *file, const char *rules)
{
	struct hspmd_error err = { "out of memory" };
	struct hspmd_policy *p = hspmd_policy_create(&err);
	char *json = hspmd_asprintf("{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"any\", %s}]}", rules);
	if (!p || !json ||
	    (file ? hspmd_policy_add_path(p, file, NULL, &err) : hspmd_policy_add_text(p, json, strlen(json), "rules", &err))) {
		fprintf(stderr, "large_site: %s\n", err.text);
		exit(1);
	}
	free(json);
	return p;
}

#define GROW(rest) "\"grow\": {\"into_idle\": true, \"after_idle_s\": 5, \"cooldown_s\": 60, \"min_gain\": 0.02" rest "}"

int main(int argc, char **argv)
{
	int nodes = argc > 1 ? atoi(argv[1]) : 20000, jobs = argc > 2 ? atoi(argv[2]) : 10000;
	static const struct {
		const char *name, *rules;
		int waiting; /* of a hundred jobs */
	} scenes[] = {
		{ "nothing to do", "\"grow\": {\"into_idle\": false}, \"shrink\": {\"for_pending\": \"none\"}", 0 },
		{ "idle nodes", GROW(""), 0 },
		{ "idle, reserve", GROW(", \"reserve_nodes\": 100") ", \"share\": {\"by\": \"proportional\"}", 0 },
		{ "jobs wait", GROW("") ", \"shrink\": {\"for_pending\": \"higher_priority\", \"cooldown_s\": 0}", 10 },
		{ "nobody gives", GROW("") ", \"shrink\": {\"for_pending\": \"none\"}", 10 },
		{ "rebalance", GROW("") ", \"share\": {\"by\": \"proportional\", \"rebalance\": true}", 0 },
	};
	if (argc > 4 || nodes < 100 || jobs < 10) {
		fprintf(stderr, "usage: large_site [NODES [JOBS [RULES]]]\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
		struct site site;
		struct hspmd_policy *policy = policy_of(argc > 3 ? argv[3] : NULL, scenes[i].rules);
		memset(&site, 0, sizeof site);
		seed = 1;
		make_site(&site, nodes, jobs, jobs * scenes[i].waiting / 100);
		if (measure(scenes[i].name, &site, policy))
			return 1;
		hspmd_policy_destroy(policy); /* the site's memory is the process's */
	}
	return 0;
}
