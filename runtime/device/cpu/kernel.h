/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernel files. Each is compiled once per (floating type, instruction set): REAL_BITS is 32 or 64, ISA names the instruction
 * set that the compiler's flags allow, and LOCAL() makes names of external linkage distinct. Vectors are GCC's; VECTOR_BYTES fits the
 * instruction set. */
#ifndef HSPMD_CPU_KERNEL_H
#define HSPMD_CPU_KERNEL_H

#include <math.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "runtime/device/cpu/cpu.h"

#define LOCAL_(name, bits, isa) hspmd_cpu_##name##_f##bits##_##isa
#define LOCAL_EXPANDED(name, bits, isa) LOCAL_(name, bits, isa)
#define LOCAL(name) LOCAL_EXPANDED(name, REAL_BITS, ISA)

#if REAL_BITS == 32
typedef float real;
typedef int32_t integer;
#else
typedef double real;
typedef int64_t integer;
#endif

#if defined __AVX512F__
#define VECTOR_BYTES 64
#elif defined __AVX2__
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES (VECTOR_BYTES * 8 / REAL_BITS)

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef integer ivec __attribute__((vector_size(VECTOR_BYTES)));

static inline vec splat(real x)
{
	return x - (vec){ 0 };
}

static inline vec load(const real *p)
{
	vec v;
	memcpy(&v, p, sizeof v);
	return v;
}

static inline void store(real *p, vec v)
{
	memcpy(p, &v, sizeof v);
}

/* The first n < LANES elements; the rest of the vector is 0. */
static inline vec load_part(const real *p, int64_t n)
{
	vec v = { 0 };
	memcpy(&v, p, (size_t)n * sizeof *p);
	return v;
}

static inline void store_part(real *p, vec v, int64_t n)
{
	memcpy(p, &v, (size_t)n * sizeof *p);
}

/* Fetches what a loop that goes through a tensor comes to soon. Processors do so by themselves only up to the end of a page, and hardly for
 * what is only written. */
#define FETCHED_AHEAD 2048 /* bytes */
static inline void fetch_ahead(const real *p)
{
	__builtin_prefetch((const char *)p + FETCHED_AHEAD);
}

static inline vec vselect(ivec mask, vec yes, vec no)
{
	return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* The larger and the smaller of two; the second if one is not a number. */
#ifdef __x86_64__
#if defined __AVX512F__
#define INTRINSIC(name) _mm512_##name
#elif defined __AVX2__
#define INTRINSIC(name) _mm256_##name
#else
#define INTRINSIC(name) _mm_##name
#endif
#if REAL_BITS == 32
#define VMAX INTRINSIC(max_ps)
#define VMIN INTRINSIC(min_ps)
#else
#define VMAX INTRINSIC(max_pd)
#define VMIN INTRINSIC(min_pd)
#endif
#else
#define VMAX(a, b) vselect(a > b, a, b)
#define VMIN(a, b) vselect(a < b, a, b)
#endif

static inline vec vmax(vec a, vec b)
{
	return (vec)VMAX(a, b);
}

static inline vec vmin(vec a, vec b)
{
	return (vec)VMIN(a, b);
}

static inline real reduce_add(vec v)
{
	real lane[LANES];
	memcpy(lane, &v, sizeof v);
	for (int n = LANES / 2; n; n /= 2)
		for (int i = 0; i < n; i++)
			lane[i] += lane[i + n];
	return lane[0];
}

static inline real reduce_max(vec v)
{
	real lane[LANES];
	memcpy(lane, &v, sizeof v);
	for (int n = LANES / 2; n; n /= 2)
		for (int i = 0; i < n; i++)
			lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
	return lane[0];
}

static inline vec vsqrt(vec v)
{
	for (int i = 0; i < LANES; i++)
		v[i] = (real)sqrt(v[i]);
	return v;
}

/* Functions of several vectors at once: each takes so many instructions that depend on one another that a processor comes to the next
 * vector's too late to compute both together. STEP keeps the compiler from computing one vector after the other, too. */
#define TOGETHER 2
#define EACH(n) for (int i = 0; i < (n); i++)
#ifdef __x86_64__
#define STEP(n, v) EACH(n) __asm__("" : "+x"((v)[i]))
#else
#define STEP(n, v) (void)(v)
#endif

#if REAL_BITS == 32
typedef uint32_t uvec __attribute__((vector_size(VECTOR_BYTES)));

/* x = e^x within 2 units of the last place (range reduction by ln 2 in two parts, polynomial on [-ln2/2, ln2/2]); 0 below -87.3. */
static inline __attribute__((always_inline)) void vexps(vec *x, int n)
{
	const vec round = splat(12582912.0f); /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
	vec shifted[TOGETHER], r[TOGETHER], p[TOGETHER];
	EACH(n) r[i] = vmin(x[i], splat(88.7f));
	EACH(n) shifted[i] = r[i] * splat(1.44269504f) + round;
	EACH(n) p[i] = shifted[i] - round;
	STEP(n, p);
	EACH(n) r[i] = r[i] - p[i] * splat(0.693359375f);
	EACH(n) r[i] = r[i] + p[i] * splat(2.12194440e-4f);
	STEP(n, r);
	EACH(n) p[i] = splat(1.9875691500e-4f) * r[i] + splat(1.3981999507e-3f);
	STEP(n, p);
	EACH(n) p[i] = p[i] * r[i] + splat(8.3334519073e-3f);
	STEP(n, p);
	EACH(n) p[i] = p[i] * r[i] + splat(4.1665795894e-2f);
	STEP(n, p);
	EACH(n) p[i] = p[i] * r[i] + splat(1.6666665459e-1f);
	STEP(n, p);
	EACH(n) p[i] = p[i] * r[i] + splat(5.0000001201e-1f);
	STEP(n, p);
	EACH(n) p[i] = p[i] * (r[i] * r[i]) + r[i];
	STEP(n, p);
	EACH(n) p[i] = p[i] + splat(1.0f);
	STEP(n, p);
	/* round's lowest bits are 0. Unsigned, as the sums that become 0 may overflow. */
	EACH(n) p[i] = (vec)(((uvec)p[i] + ((uvec)shifted[i] << 23)) & ~(uvec)(x[i] < splat(-87.3f)));
	EACH(n) x[i] = (vec)((ivec)p[i] | (ivec)(x[i] != x[i]));
}
#else
static inline __attribute__((always_inline)) void vexps(vec *x, int n)
{
	for (real *at = (real *)x; at < (real *)(x + n); at++)
		*at = exp(*at);
}
#endif

static inline __attribute__((always_inline)) vec vexp(vec x)
{
	vexps(&x, 1);
	return x;
}

/* x = 1 / (1 + e^-x) */
static inline __attribute__((always_inline)) void vsigmoids(vec *x, int n)
{
	EACH(n) x[i] = -x[i];
	vexps(x, n);
	EACH(n) x[i] = splat(1) / (splat(1) + x[i]);
}

static inline __attribute__((always_inline)) vec vsigmoid(vec x)
{
	vsigmoids(&x, 1);
	return x;
}

/* cap * tanh(x / cap) */
static inline vec vsoftcap(vec x, real cap)
{
	for (int i = 0; i < LANES; i++)
		x[i] = cap * (real)tanh((double)(x[i] / cap));
	return x;
}

/* Number of rows of the last dimension in a view, and the length of that dimension. */
static inline int64_t row_length(const struct hspmd_view *v)
{
	return v->rank ? v->shape[v->rank - 1] : 1;
}

static inline int64_t row_count(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d + 1 < v->rank; d++)
		n *= v->shape[d];
	return n;
}

static inline int64_t element_count(const struct hspmd_view *v)
{
	return row_count(v) * row_length(v);
}

/* Approximate nanoseconds per element on one thread, for hspmd_thread_pool_for. Measured with AVX2 on data in the caches, which calls that
 * are about worth a second thread have: right to a factor of two; data from memory take several times as long. */
#define WORD_NS (REAL_BITS / 32.0)
#define MOVE_NS (0.25 * WORD_NS)    /* read, used in a few instructions and written */
#define VEXP_NS (1.0 * WORD_NS)     /* vexp and the arithmetic around it */
#define LIBM_NS 15.0                /* a call of libm's exp, sin, pow... */
#define PRODUCT_NS (0.04 * WORD_NS) /* one multiplication and addition of a matrix product */

/* Cuts `count` elements into at most `parts` items of nearly equal size, independent of the number of threads: part i is [*first, *end). */
static inline void split_range(int64_t count, int64_t parts, int64_t i, int64_t *first, int64_t *end)
{
	*first = count * i / parts;
	*end = count * (i + 1) / parts;
}

/* C[m,n] (+)= A[m,k] B[k,n] + bias. Element (i, j) of A is at data[i * rows + j * columns], likewise for B; C's rows are `ldc` apart. */
struct matrix {
	const real *data;
	int64_t rows, columns;
};
struct gemm {
	int64_t m, n, k;
	struct matrix a, b;
	real *c;
	int64_t ldc;
	const real *bias;  /* added to every row; NULL: none */
	real *column_sums; /* to which the sums of B's columns are added, as B is read; NULL: none */
	bool accumulate;
};
void LOCAL(gemm)(struct hspmd_thread_pool *pool, const struct gemm *p, void *workspace);
/* Enough for any m, and for all smaller n and k. */
size_t LOCAL(gemm_workspace)(int threads, int64_t n, int64_t k);

#endif
