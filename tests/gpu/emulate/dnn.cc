/* SPDX-License-Identifier: Apache-2.0 */
/* Emulates cuDNN, as runtime/device/cuda/dnn.h declares it, on the emulated device. HSPMD_CUDNN chooses how it behaves:
 * - played: every attention has two plans, each with a workspace like the real one's; both compute it row by row.
 * - refusing: there is no plan.
 * - failing: there are plans, but they do not run.
 * HSPMD_EMULATE_DNN_VERSION is the version that it says it has (default 91501: 9.15.1). emulate_dnn_runs counts the runs of each plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "common/half.h"
#include "runtime/device/cuda/dnn.h"
#include "tests/gpu/emulate/counts.h"

#define PLANS 2

extern "C" {
extern long emulate_counts[EMULATE_COUNTS]; /* runtime.cc */
extern long emulate_dnn_runs[PLANS];
long emulate_dnn_runs[PLANS] __attribute__((visibility("default")));
}

struct hspmd_dnn {
	cudaStream_t stream;
};

struct hspmd_dnn_plan {
	hspmd_dnn_attention about;
	int number;
};

static bool is_played_as(const char *how)
{
	const char *played = getenv("HSPMD_CUDNN");
	return played && !strcmp(played, how);
}

int hspmd_dnn_open(struct hspmd_dnn **dnn, cudaStream_t stream, struct hspmd_error *err)
{
	if (!is_played_as("played") && !is_played_as("refusing") && !is_played_as("failing"))
		return hspmd_fail(err, "HSPMD_CUDNN does not ask for it");
	*dnn = new hspmd_dnn{ stream };
	return 0;
}

void hspmd_dnn_close(struct hspmd_dnn *dnn)
{
	delete dnn;
}

size_t hspmd_dnn_version(const struct hspmd_dnn *)
{
	const char *version = getenv("HSPMD_EMULATE_DNN_VERSION");
	return version ? strtoull(version, NULL, 10) : 91501;
}

int hspmd_dnn_find_plans(struct hspmd_dnn *, const struct hspmd_dnn_attention *a, size_t workspace_most, struct hspmd_dnn_plan **plans,
                         int most, struct hspmd_error *err)
{
	int count = 0;
	__atomic_add_fetch(&emulate_counts[EMULATE_LOOKUPS], 1, __ATOMIC_RELAXED);
	for (; count < most && count < PLANS && !is_played_as("refusing"); count++) {
		plans[count] = new hspmd_dnn_plan{ *a, count };
		if (hspmd_dnn_plan_workspace(plans[count]) > workspace_most) {
			delete plans[count];
			break;
		}
	}
	if (!count)
		hspmd_fail(err, "no plan");
	return count;
}

void hspmd_dnn_plan_destroy(struct hspmd_dnn_plan *plan)
{
	delete plan;
}

size_t hspmd_dnn_plan_workspace(const struct hspmd_dnn_plan *plan)
{
	const hspmd_dnn_attention &a = plan->about;
	return a.backward ? (size_t)(a.batches * a.heads * a.queries * (4 + 2 * a.keys)) : 0;
}

/* Rows of heads, as floats. */
struct rows {
	uint16_t *data;
	hspmd_dnn_rows at;
	int64_t d;
	uint16_t *of(int64_t batch, int64_t head, int64_t t) const
	{
		return data + batch * at.batch + t * at.row + head * d;
	}
	double dot(const rows &other, int64_t batch, int64_t head, int64_t t, int64_t other_head, int64_t u) const
	{
		double sum = 0;
		for (int64_t c = 0; c < d; c++)
			sum += (double)hspmd_bf16_to_float(of(batch, head, t)[c]) *
			       (double)hspmd_bf16_to_float(other.of(batch, other_head, u)[c]);
		return sum;
	}
};

static bool sees(const hspmd_dnn_attention &a, int64_t q, int64_t k)
{
	int64_t distance = q + a.shift - k;
	return distance >= 0 && (!a.window || distance < a.window);
}

static void write_row(uint16_t *to, const std::vector<double> &from)
{
	for (size_t c = 0; c < from.size(); c++)
		to[c] = hspmd_bf16_from_float((float)from[c]);
}

static void add_row(std::vector<double> &sum, double weight, const uint16_t *row)
{
	for (size_t c = 0; c < sum.size(); c++)
		sum[c] += weight * (double)hspmd_bf16_to_float(row[c]);
}

static void forward(const hspmd_dnn_attention &a, const hspmd_dnn_buffers &at, const rows &q, const rows &k, const rows &v, const rows &o)
{
	for (int64_t b = 0; b < a.batches; b++)
		for (int64_t h = 0; h < a.heads; h++)
			for (int64_t i = 0; i < a.queries; i++) {
				int64_t kv = h / (a.heads / a.kv_heads);
				std::vector<double> out((size_t)a.head_dim);
				double sum = 0;
				for (int64_t j = 0; j < a.keys; j++)
					if (sees(a, i, j)) {
						double p = exp(a.scale * q.dot(k, b, h, i, kv, j));
						sum += p;
						add_row(out, p, v.of(b, kv, j));
					}
				for (double &x : out)
					x /= sum;
				write_row(o.of(b, h, i), out);
				at.lse[(b * a.heads + h) * a.queries + i] = (float)log(sum);
			}
}

/* The gradients of scores are written to the workspace first; each sum reads them from there. */
static void backward(const hspmd_dnn_attention &a, const hspmd_dnn_buffers &at, const rows &q, const rows &k, const rows &v, const rows &o)
{
	rows dout{ (uint16_t *)at.dout, a.o, a.head_dim }, dq{ (uint16_t *)at.dq, a.q, a.head_dim },
	        dk{ (uint16_t *)at.dk, a.k, a.head_dim }, dv{ (uint16_t *)at.dv, a.v, a.head_dim };
	int64_t group = a.heads / a.kv_heads;
	uint16_t *ds = (uint16_t *)((float *)at.workspace + a.batches * a.heads * a.queries);
	auto row = [&](int64_t b, int64_t h, int64_t i) { return (b * a.heads + h) * a.queries + i; };
	auto p = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
		return sees(a, i, j) ? exp(a.scale * q.dot(k, b, h, i, h / group, j) - (double)at.lse[row(b, h, i)]) : 0.0;
	};
	for (int64_t b = 0; b < a.batches; b++)
		for (int64_t h = 0; h < a.heads; h++)
			for (int64_t i = 0; i < a.queries; i++) {
				std::vector<double> sum((size_t)a.head_dim);
				double delta = dout.dot(o, b, h, i, h, i);
				((float *)at.workspace)[row(b, h, i)] = (float)delta;
				for (int64_t j = 0; j < a.keys; j++) {
					double slope = a.scale * p(b, h, i, j) * (dout.dot(v, b, h, i, h / group, j) - delta);
					ds[row(b, h, i) * a.keys + j] = hspmd_bf16_from_float((float)slope);
					add_row(sum, slope, k.of(b, h / group, j));
				}
				write_row(dq.of(b, h, i), sum);
			}
	for (int64_t b = 0; b < a.batches; b++)
		for (int64_t kv = 0; kv < a.kv_heads; kv++)
			for (int64_t j = 0; j < a.keys; j++) {
				std::vector<double> to_k((size_t)a.head_dim), to_v((size_t)a.head_dim);
				for (int64_t h = kv * group; h < (kv + 1) * group; h++)
					for (int64_t i = 0; i < a.queries; i++) {
						add_row(to_k, (double)hspmd_bf16_to_float(ds[row(b, h, i) * a.keys + j]), q.of(b, h, i));
						add_row(to_v, p(b, h, i, j), dout.of(b, h, i));
					}
				write_row(dk.of(b, kv, j), to_k);
				write_row(dv.of(b, kv, j), to_v);
			}
}

int hspmd_dnn_run(struct hspmd_dnn *dnn, const struct hspmd_dnn_plan *plan, const struct hspmd_dnn_buffers *buffers,
                  struct hspmd_error *err)
{
	emulate_own own;
	if (is_played_as("failing"))
		return hspmd_fail(err, "played failure");
	hspmd_dnn_attention a = plan->about;
	hspmd_dnn_buffers at = *buffers;
	emulate_dnn_runs[plan->number]++;
	emulate_enqueue(dnn->stream, [=] {
		rows q{ (uint16_t *)at.q, a.q, a.head_dim }, k{ (uint16_t *)at.k, a.k, a.head_dim }, v{ (uint16_t *)at.v, a.v, a.head_dim },
		        o{ (uint16_t *)at.o, a.o, a.head_dim };
		if (a.backward)
			backward(a, at, q, k, v, o);
		else
			forward(a, at, q, k, v, o);
	});
	return 0;
}
