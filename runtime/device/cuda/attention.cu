/* SPDX-License-Identifier: Apache-2.0 */
/* Attention for heads of any size up to 256 and either type, in F32 on CUDA cores. A block takes TILE queries or keys; PARTS threads share
 * each of them. If the tensor-core kernels (attention_mma.cu) support the heads, these are used instead. */
#include "runtime/device/cuda/attention.h"
#include "runtime/device/dropout.h"

#define TILE 32
#define PARTS 4
#define THREADS (TILE * PARTS)
#define EACH (TILE / PARTS)
#define HIDDEN -1e30f

/* Loads rows [first, first + TILE) of a head into shared memory, 0 beyond the last. */
template <typename T>
static __device__ __forceinline__ void load_rows(float *to, const struct head_rows &from, int batch, int head, int d, int first, int rows)
{
	const T *data = (const T *)from.data + batch * from.batch + (int64_t)head * d;
	for (int i = threadIdx.x; i < TILE * d; i += THREADS) {
		int r = i / d, c = i % d;
		to[r * (d + 1) + c] = first + r < rows ? to_float(data[(int64_t)(first + r) * from.row + c]) : 0.0f;
	}
}

static __device__ __forceinline__ float dot(const float *a, const float *b, int d)
{
	float sum = 0;
	for (int c = 0; c < d; c++)
		sum += a[c] * b[c];
	return sum;
}

/* The score of a product of a query and a key. */
static __device__ __forceinline__ float score_of(const struct attention &a, float product)
{
	float score = a.scale * product;
	return a.softcap > 0.0f ? a.softcap * tanhf(score / a.softcap) : score;
}

/* What the mask adds to the score of a query and a key. */
template <typename T> static __device__ __forceinline__ float masked(const struct attention &a, int batch, int head, int q, int k)
{
	return a.mask ? to_float(((const T *)
	                                  a.mask)[batch * a.mask_step[0] + head * a.mask_step[1] + q * a.mask_step[2] + k * a.mask_step[3]])
	              : 0.0f;
}

/* Dropout's factor of the probability of a key for a query. */
static __device__ __forceinline__ float kept(const struct attention &a, int batch, int head, int q, int k)
{
	if (!a.noise || q >= a.queries)
		return 1.0f;
	return (float)hspmd_dropout_factor(a.rate, a.stream, a.noise[batch * a.noise_length + q + a.shift],
	                                   hspmd_dropout_probability(a.first_head + head, a.first_key + k));
}

/* Reduces over the threads that share a row. */
template <typename How> static __device__ __forceinline__ float parts_reduce(float x)
{
	return warp_reduce<How>(x, PARTS);
}

template <typename T, int most> static __global__ void __launch_bounds__(THREADS) forward_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(float, shared);
	int d = a.head_dim, pitch = d + 1;
	float *query = shared, *key = query + TILE * pitch, *scores = key + TILE * pitch;
	int own = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
	int q0 = (tiles - 1 - (int)(blockIdx.x % tiles)) * TILE, head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads,
	    first, end;
	float out[most / PARTS] = {}, high = HIDDEN, sum = 0;
	if (a.sinks) {
		high = to_float(((const T *)a.sinks)[head]);
		sum = 1;
	}
	load_rows<T>(query, a.q, batch, head, d, q0, a.queries);
	keys_seen(a, batch, q0, TILE, &first, &end);
	for (int k0 = first / TILE * TILE; k0 < end; k0 += TILE) {
		__syncthreads();
		load_rows<T>(key, a.k, batch, kv_of(a, head), d, k0, a.keys);
		__syncthreads();
		float s[EACH], now = high;
		for (int i = 0; i < EACH; i++) {
			int k = part + i * PARTS;
			s[i] = sees(a, batch, q0 + own, k0 + k) ? score_of(a, dot(query + own * pitch, key + k * pitch, d)) +
			                                                  masked<T>(a, batch, head, q0 + own, k0 + k)
			                                        : HIDDEN;
			now = fmaxf(now, s[i]);
		}
		now = parts_reduce<Max>(now);
		float factor = expf(high - now), more = 0;
		high = now;
		for (int i = 0; i < EACH; i++) {
			float p = s[i] > HIDDEN ? expf(s[i] - now) : 0.0f;
			more += p;
			scores[own * (TILE + 1) + part + i * PARTS] = p * kept(a, batch, head, q0 + own, k0 + part + i * PARTS);
		}
		sum = sum * factor + parts_reduce<Sum>(more);
		__syncthreads(); /* all threads have read the keys */
		load_rows<T>(key, a.v, batch, kv_of(a, head), d, k0, a.keys);
		__syncthreads();
#pragma unroll
		for (int i = 0; i < most / PARTS; i++)
			out[i] *= factor;
#pragma unroll 1
		for (int k = 0; k < TILE; k++) {
			float p = scores[own * (TILE + 1) + k];
#pragma unroll
			for (int i = 0; i < most / PARTS; i++)
				if (part + i * PARTS < d)
					out[i] += p * key[k * pitch + part + i * PARTS];
		}
	}
	if (q0 + own >= a.queries)
		return;
	T *o = (T *)a.o.data + batch * a.o.batch + (int64_t)(q0 + own) * a.o.row + (int64_t)head * d;
#pragma unroll
	for (int i = 0; i < most / PARTS; i++)
		if (part + i * PARTS < d)
			o[part + i * PARTS] = from_float<T>(sum > 0.0f ? out[i] / sum : 0.0f);
	if (part == 0)
		a.lse[stats_at(a, batch, head, q0 + own)] = sum > 0.0f ? high + logf(sum) : HIDDEN;
}

/* Computes the probability and the gradient of the score of a query and a key from their rows and statistics. */
template <typename T>
static __device__ __forceinline__ void differentiate(const struct attention &a, int batch, int head, int q, int k, const float *query,
                                                     const float *dout, const float *key, const float *value, float lse, float delta,
                                                     float *p, float *ds)
{
	*p = *ds = 0;
	if (!sees(a, batch, q, k))
		return;
	float score = score_of(a, dot(query, key, a.head_dim)), slope = a.scale;
	if (a.softcap > 0.0f)
		slope *= 1.0f - score / a.softcap * (score / a.softcap);
	float keep = kept(a, batch, head, q, k), probability = expf(score + masked<T>(a, batch, head, q, k) - lse);
	*ds = probability * (keep * dot(dout, value, a.head_dim) - delta) * slope;
	*p = keep * probability;
}

template <typename T, int most> static __global__ void __launch_bounds__(THREADS) keys_grad_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(float, shared);
	int d = a.head_dim, pitch = d + 1;
	float *key = shared, *value = key + TILE * pitch, *query = value + TILE * pitch, *dout = query + TILE * pitch,
	      *p = dout + TILE * pitch;
	float *ds = p + TILE * (TILE + 1), *lse = ds + TILE * (TILE + 1), *delta = lse + TILE;
	int own = threadIdx.x / PARTS, part = threadIdx.x % PARTS, row = own * (TILE + 1);
	int k0 = (int)(blockIdx.x % tiles) * TILE, kv = blockIdx.x / tiles % a.kv_heads, batch = blockIdx.x / tiles / a.kv_heads, first,
	    end;
	float dk[most / PARTS] = {}, dv[most / PARTS] = {};
	load_rows<T>(key, a.k, batch, kv, d, k0, a.keys);
	load_rows<T>(value, a.v, batch, kv, d, k0, a.keys);
	queries_seen(a, batch, k0, TILE, &first, &end);
	for (int head = 0; head < a.heads; head++) {
		if (kv_of(a, head) != kv)
			continue;
		for (int q0 = first / TILE * TILE; q0 < end; q0 += TILE) {
			__syncthreads();
			load_rows<T>(query, a.q, batch, head, d, q0, a.queries);
			load_rows<T>(dout, a.dout, batch, head, d, q0, a.queries);
			if (threadIdx.x < TILE && q0 + (int)threadIdx.x < a.queries) {
				lse[threadIdx.x] = a.lse[stats_at(a, batch, head, q0 + threadIdx.x)];
				delta[threadIdx.x] = a.delta[stats_at(a, batch, head, q0 + threadIdx.x)];
			}
			__syncthreads();
			for (int i = 0; i < EACH; i++) {
				int q = part + i * PARTS;
				differentiate<T>(a, batch, head, q0 + q, k0 + own, query + q * pitch, dout + q * pitch, key + own * pitch,
				                 value + own * pitch, lse[q], delta[q], &p[row + q], &ds[row + q]);
			}
			__syncwarp();
#pragma unroll 1
			for (int q = 0; q < TILE; q++) {
				float weight = p[row + q], slope = ds[row + q];
#pragma unroll
				for (int i = 0; i < most / PARTS; i++)
					if (part + i * PARTS < d) {
						dv[i] += weight * dout[q * pitch + part + i * PARTS];
						dk[i] += slope * query[q * pitch + part + i * PARTS];
					}
			}
		}
	}
	if (k0 + own >= a.keys)
		return;
	T *to_k = a.dk.data ? (T *)a.dk.data + batch * a.dk.batch + (int64_t)(k0 + own) * a.dk.row + (int64_t)kv * d : NULL;
	T *to_v = a.dv.data ? (T *)a.dv.data + batch * a.dv.batch + (int64_t)(k0 + own) * a.dv.row + (int64_t)kv * d : NULL;
#pragma unroll
	for (int i = 0; i < most / PARTS; i++) {
		int c = part + i * PARTS;
		if (c < d && to_k)
			to_k[c] = from_float<T>(dk[i]);
		if (c < d && to_v)
			to_v[c] = from_float<T>(dv[i]);
	}
}

template <typename T, int most> static __global__ void __launch_bounds__(THREADS) queries_grad_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(float, shared);
	int d = a.head_dim, pitch = d + 1;
	float *query = shared, *dout = query + TILE * pitch, *key = dout + TILE * pitch, *value = key + TILE * pitch,
	      *ds = value + TILE * pitch;
	int own = threadIdx.x / PARTS, part = threadIdx.x % PARTS, row = own * (TILE + 1);
	int q0 = (tiles - 1 - (int)(blockIdx.x % tiles)) * TILE, head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads,
	    first, end;
	bool here = q0 + own < a.queries;
	float dq[most / PARTS] = {}, lse = here ? a.lse[stats_at(a, batch, head, q0 + own)] : 0.0f;
	float delta = here ? a.delta[stats_at(a, batch, head, q0 + own)] : 0.0f;
	load_rows<T>(query, a.q, batch, head, d, q0, a.queries);
	load_rows<T>(dout, a.dout, batch, head, d, q0, a.queries);
	keys_seen(a, batch, q0, TILE, &first, &end);
	for (int k0 = first / TILE * TILE; k0 < end; k0 += TILE) {
		__syncthreads();
		load_rows<T>(key, a.k, batch, kv_of(a, head), d, k0, a.keys);
		load_rows<T>(value, a.v, batch, kv_of(a, head), d, k0, a.keys);
		__syncthreads();
		for (int i = 0; i < EACH; i++) {
			int k = part + i * PARTS;
			float p;
			differentiate<T>(a, batch, head, q0 + own, k0 + k, query + own * pitch, dout + own * pitch, key + k * pitch,
			                 value + k * pitch, lse, delta, &p, &ds[row + k]);
		}
		__syncwarp();
#pragma unroll 1
		for (int k = 0; k < TILE; k++) {
			float slope = ds[row + k];
#pragma unroll
			for (int i = 0; i < most / PARTS; i++)
				if (part + i * PARTS < d)
					dq[i] += slope * key[k * pitch + part + i * PARTS];
		}
	}
	if (!here)
		return;
	T *to = (T *)a.dq.data + batch * a.dq.batch + (int64_t)(q0 + own) * a.dq.row + (int64_t)head * d;
#pragma unroll
	for (int i = 0; i < most / PARTS; i++)
		if (part + i * PARTS < d)
			to[part + i * PARTS] = from_float<T>(dq[i]);
}

/* ---- for the host */

static int inputs_of(const struct hspmd_kernel_args *args, int first)
{
	return args->in[first].rank == 4 ? 1 : 3;
}

template <typename T> static void *moved(void *data, int64_t elements)
{
	return data ? (T *)data + elements : NULL;
}

/* in[first..] are q, k, v or qkv; segments, if given, are in[segments]. rows: o or its gradient, whose positions are the queries to compute
 * (qkv may hold more). */
template <typename T>
static void set_up(struct attention *a, const struct hspmd_kernel_args *args, int first, int segments, const struct hspmd_view *rows)
{
	const struct hspmd_view *q = &args->in[first];
	bool packed = inputs_of(args, first) == 1;
	const struct hspmd_view *k = packed ? q : &args->in[first + 1], *v = packed ? q : &args->in[first + 2];
	int last = q->rank - 1;
	int64_t d = args->attr->head_dim, width = q->shape[last], kv_width = k->shape[last], fold = packed ? 3 : 1;
	*a = attention();
	a->stage = args->prepared ? ATTENTION_PREPARED : ATTENTION_UNPREPARED;
	a->batches = (int)q->shape[0];
	a->head_dim = (int)d;
	a->queries = (int)rows->shape[1];
	a->keys = (int)k->shape[1];
	a->shift = (int)(rows->start[1] - k->start[1]);
	a->heads = (int)(width / d);
	a->kv_heads = (int)(kv_width / d);
	a->first_head = (int)(q->start[last] / d);
	a->first_kv = (int)(k->start[last] / d);
	a->group = (int)(q->full[last] / k->full[last]);
	a->window = (int)args->attr->window;
	a->bidirectional = args->attr->bidirectional;
	a->any_order = args->any_order;
	a->workspace_most = args->workspace_most;
	a->scale = (float)args->attr->scale;
	a->softcap = (float)args->attr->softcap;
	if (args->input_count > segments && args->in[segments].rank >= 0) {
		const struct hspmd_view *s = &args->in[segments];
		a->segments = (const int32_t *)s->data + (k->start[1] - s->start[1]);
		a->segment_length = s->shape[1];
	}
	int noise = segments + (first ? 1 : 2); /* the gradient has no sinks */
	if (args->input_count > noise && args->in[noise].rank >= 0) {
		const struct hspmd_view *n = &args->in[noise];
		a->noise = (const int32_t *)n->data + (k->start[1] - n->start[1]);
		a->noise_length = n->shape[1];
		a->first_key = k->start[1];
		a->rate = args->attr->rate;
		a->stream = args->attr->random.stream;
	}
	const struct hspmd_view *mask = &args->in[noise + 1];
	if (args->input_count > noise + 1 && mask->rank >= 0) {
		int64_t step = 1;
		a->mask = mask->data;
		for (int i = 3; i >= 0; step *= mask->shape[i--])
			a->mask_step[i] = mask->full[i] == 1 ? 0 : step;
	}
	a->q.batch = q->shape[1] * fold * width;
	a->q.row = fold * width;
	a->q.data = moved<T>(q->data, (rows->start[1] - q->start[1]) * a->q.row);
	a->k.batch = a->v.batch = a->keys * fold * kv_width;
	a->k.row = a->v.row = fold * kv_width;
	a->k.data = moved<T>(k->data, packed ? width : 0);
	a->v.data = moved<T>(v->data, packed ? 2 * width : 0);
	a->o.batch = a->queries * width;
	a->o.row = width;
}

static size_t shared_bytes(int head_dim, int rows, int squares, int rests)
{
	return (size_t)(rows * TILE * (head_dim + 1) + squares * TILE * (TILE + 1) + rests * TILE) * sizeof(float);
}

template <typename T, int most> static int forward_of(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err)
{
	const struct attention_kernel forward = { forward_kernel<T, most>, TILE, THREADS, shared_bytes(a->head_dim, 2, 1, 0) };
	return hspmd_cuda_attention_launch(cuda, a, &forward, err);
}

template <typename T, int most> static int backward_of(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err)
{
	const struct attention_kernel keys = { keys_grad_kernel<T, most>, TILE, THREADS, shared_bytes(a->head_dim, 4, 2, 2) };
	const struct attention_kernel queries = { queries_grad_kernel<T, most>, TILE, THREADS, shared_bytes(a->head_dim, 4, 1, 0) };
	return hspmd_cuda_attention_grad_launch(cuda, a, &keys, &queries, err);
}

static int check_size(const struct attention *a, struct hspmd_error *err)
{
	return a->head_dim <= 256 ? 0 : hspmd_fail(err, "the CUDA device has attention for heads of up to 256, not %d", a->head_dim);
}

/* Whether the newest kernels are to be tried; what can also be computed by the others is prepared for both. */
static bool tries_wgmma(const struct hspmd_cuda *cuda, const struct attention *a)
{
	return cuda->wgmma && a->kernels == ATTENTION_NEWEST;
}

/* Runs our kernels: the tensor-core ones if they support the heads, else those of this file. */
template <typename T> static int own_forward(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err)
{
	hspmd_cuda_attention_find_documents(cuda, a);
	if (sizeof(T) == 2 && !a->sinks && !a->noise && !a->mask && !(a->softcap > 0)) {
		if (tries_wgmma(cuda, a) && hspmd_cuda_attention_wgmma(cuda, a) && a->stage != ATTENTION_PREPARING)
			return 0;
		if (hspmd_cuda_attention_mma(cuda, a))
			return 0;
	}
	return a->head_dim <= 128 ? forward_of<T, 128>(cuda, a, err) : forward_of<T, 256>(cuda, a, err);
}

template <typename T> static int own_backward(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err)
{
	hspmd_cuda_attention_find_documents(cuda, a);
	if (a->stage != ATTENTION_PREPARING)
		hspmd_cuda_attention_find_delta(cuda, a, sizeof(T) == 2 ? HSPMD_BF16 : HSPMD_F32);
	if (sizeof(T) == 2 && !a->noise && !a->mask && !(a->softcap > 0)) {
		if (tries_wgmma(cuda, a) && hspmd_cuda_attention_wgmma_grad(cuda, a) && a->stage != ATTENTION_PREPARING)
			return 0;
		if (hspmd_cuda_attention_mma_grad(cuda, a))
			return 0;
	}
	if (a->head_dim <= 128 ? backward_of<T, 128>(cuda, a, err) : backward_of<T, 256>(cuda, a, err))
		return -1;
	if (a->angles && a->stage != ATTENTION_PREPARING)
		hspmd_cuda_attention_turn_back(cuda, a, sizeof(T) == 2 ? HSPMD_BF16 : HSPMD_F32);
	return 0;
}

template <typename T> static void set_up_forward(struct attention *a, const struct hspmd_kernel_args *args)
{
	int segments = inputs_of(args, 0);
	set_up<T>(a, args, 0, segments, &args->out[0]);
	if (args->input_count > segments + 1 && args->in[segments + 1].rank >= 0)
		a->sinks = args->in[segments + 1].data;
	a->o.data = args->out[0].data;
	a->lse = (float *)args->out[1].data;
	a->documents = (struct tile_documents *)args->workspace;
}

template <typename T> static void set_up_backward(struct attention *a, const struct hspmd_kernel_args *args)
{
	int inputs = inputs_of(args, 1), o = 1 + inputs;
	set_up<T>(a, args, 1, o + 2, &args->in[0]);
	if (args->input_count > HSPMD_ATTENTION_GRAD_ANGLES)
		a->angles = (const float *)args->in[HSPMD_ATTENTION_GRAD_ANGLES].data;
	a->o.data = args->in[o].data;
	a->lse = (float *)args->in[o + 1].data;
	a->delta = (float *)args->workspace;
	a->dout = a->o;
	size_t delta = hspmd_cuda_attention_delta_bytes(a), own = delta + hspmd_cuda_attention_documents_bytes(a);
	a->documents = (struct tile_documents *)moved<char>(args->workspace, (int64_t)delta);
	a->scores = moved<char>(args->workspace, (int64_t)own);
	/* Other operators' workspace may be larger: how this one computes must not depend on it if it is to take less. */
	a->scores_bytes = hspmd_workspace_within(args->workspace_bytes > own ? args->workspace_bytes - own : 0, args->workspace_most);
	a->dout.data = args->in[0].data;
	a->dq = a->q;
	a->dk = a->k;
	a->dv = a->v;
	int64_t before = (args->in[0].start[1] - args->in[1].start[1]) * a->q.row, width = (int64_t)a->heads * a->head_dim;
	a->dq.data = moved<T>(args->out[0].data, before);
	a->dk.data = inputs == 1 ? moved<T>(args->out[0].data, width) : args->out[1].data;
	a->dv.data = inputs == 1 ? moved<T>(args->out[0].data, 2 * width) : args->out[2].data;
}

static bool is_empty(const struct attention *a)
{
	return !a->batches || !a->queries || !a->heads;
}

/* cuDNN's way or our kernels. */
template <typename T>
static int run_either(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct attention *a, bool backward,
                      hspmd_cuda_own_attention own, struct hspmd_error *err)
{
	const void *choice = args->prepared ? args->prepared->choice[0] : NULL;
	int done = sizeof(T) == 2 ? hspmd_cuda_dnn_attention(cuda, a, backward, own, choice, args->workspace, args->workspace_bytes, err)
	                          : 0;
	if (done > 0 && a->angles)
		return hspmd_cuda_attention_turn_back_alone(cuda, args, err);
	return done ? (done < 0 ? -1 : 0) : own(cuda, a, err);
}

template <typename T> static int run_forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct attention a;
	set_up_forward<T>(&a, args);
	if (check_size(&a, err))
		return -1;
	return is_empty(&a) ? 0 : run_either<T>(cuda, args, &a, false, own_forward<T>, err);
}

template <typename T> static int run_backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct attention a;
	set_up_backward<T>(&a, args);
	if (check_size(&a, err))
		return -1;
	/* The gradient of queries that other devices compute is 0 here. */
	if (a.dq.data && a.queries < args->in[1].shape[1])
		cudaMemsetAsync(args->out[0].data, 0, (size_t)hspmd_cuda_elements(&args->out[0]) * sizeof(T), cuda->stream);
	return is_empty(&a) ? 0 : run_either<T>(cuda, args, &a, true, own_backward<T>, err);
}

/* Our kernels, too: a choice made elsewhere may be for them. Every GPU has the shared memory of the tensor-core kernels. */
template <typename T>
static int prepare_either(struct hspmd_cuda *cuda, struct attention *a, bool backward, struct hspmd_prepared *to, struct hspmd_error *err)
{
	hspmd_cuda_own_attention own = backward ? own_backward<T> : own_forward<T>;
	if (check_size(a, err))
		return -1;
	if (is_empty(a))
		return 0;
	if (sizeof(T) == 2 && hspmd_cuda_dnn_prepare(cuda, a, backward, own, &to->choice[0], err))
		return -1;
	a->stage = ATTENTION_PREPARING;
	return own(cuda, a, err);
}

template <typename T>
static int prepare_forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                           struct hspmd_error *err)
{
	struct attention a;
	set_up_forward<T>(&a, args);
	return prepare_either<T>(cuda, &a, false, to, err);
}

template <typename T>
static int prepare_backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                            struct hspmd_error *err)
{
	struct attention a;
	set_up_backward<T>(&a, args);
	return prepare_either<T>(cuda, &a, true, to, err);
}

static int attention_forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, run_forward, cuda, args, err);
}

static int attention_backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, run_backward, cuda, args, err);
}

template <typename T> static size_t workspace_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, bool backward)
{
	struct attention a;
	if (backward)
		set_up_backward<T>(&a, args);
	else
		set_up_forward<T>(&a, args);
	size_t own = hspmd_cuda_attention_documents_bytes(&a) + (backward ? hspmd_cuda_attention_delta_bytes(&a) : 0), dnn = 0;
	if (sizeof(T) == 2) {
		own += backward && cuda->wgmma ? hspmd_cuda_attention_wgmma_workspace(cuda, &a) : 0;
		dnn = hspmd_cuda_dnn_workspace(cuda, &a, backward, backward ? own_backward<T> : own_forward<T>);
	}
	return dnn > own ? dnn : own;
}

static size_t forward_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	return BY_TYPE(args->in[0].dtype, workspace_of, cuda, args, false);
}

static size_t backward_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	return BY_TYPE(args->in[0].dtype, workspace_of, cuda, args, true);
}

static int forward_prepare(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                           struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, prepare_forward, cuda, args, to, err);
}

static int backward_prepare(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                            struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, prepare_backward, cuda, args, to, err);
}

const struct hspmd_cuda_kernel hspmd_cuda_attention = { attention_forward, forward_workspace, NULL, forward_prepare };
const struct hspmd_cuda_kernel hspmd_cuda_attention_grad = { attention_backward, backward_workspace, NULL, backward_prepare };
const struct hspmd_cuda_kernel hspmd_cuda_attention_grad_rope = { attention_backward, backward_workspace, NULL, backward_prepare };
