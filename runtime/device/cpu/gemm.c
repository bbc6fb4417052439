/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix product (the blocking of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Both operands are
 * packed into panels that the innermost kernel reads in order: A in panels of MR rows, B in panels of NR columns, both along k. Where the
 * kernel can read rows of A as they are, these are not packed. All threads together pack a block of B, which they share; then each thread
 * takes blocks of C, so that what the kernel reads again and again stays in the thread's own caches. For gradients of weights it is the
 * block of A that they share. What a thread reads next, it fetches while it multiplies. An element of C is always summed in the same order,
 * so its bits depend neither on the threads nor on how rows and columns are divided among devices. */
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/microkernel.h"

/* Depth of a block, rows of a block of A, columns of a block of B: a block of A and a panel of B stay in the second-level cache (a megabyte
 * or more on machines with AVX-512, else possibly only a quarter), the block of B in the last-level cache that the threads share. */
#ifdef __AVX512F__
#define KC_MAX 768
#define KC_DEEP 768
#else
#define KC_MAX 384
#define KC_DEEP 256 /* a panel of B and two of A, of which one is fetched, stay in 32 KiB of first-level cache */
#endif
#define MC 96 /* a multiple of MR */
#define MC_LAST (MC / 4) /* rows of the last blocks, if rows of A are read where they are: threads end at about the same time */
#define MC_SHARED 384 /* most rows of a block of A that all threads share */
#define SHARED_ITEMS 12 /* into which, per thread, its columns are divided: all wait for the last */
#define NC_MAX (NR * 96)
#define PANELS_MAX 4 /* of B, packed at once */
/* Panels of B, the fewest that a thread multiplies by all rows of A before it goes to others, if rows of A are not packed: these panels
 * stay in the second-level cache, and MR rows of A in the first-level one. */
#define PANELS_KEPT 16

struct blocks {
	const struct gemm *p;
	int64_t mc;         /* rows of blocks of A, at most MC */
	int64_t equal;      /* number of blocks that have so many; those behind them have MC_LAST */
	int64_t kc, k0, k1; /* depth of blocks; this block's range of k */
	int64_t n0, n1;     /* columns of this block of B */
	int64_t row_items, column_items, threads;
	bool in_place;  /* rows of A are read where they are */
	int64_t panels; /* of B, packed at once: as many as leave work for all threads */
	real *b_panels;
	real *a_panels; /* one block per thread, or the block that all share */
	real *b_panel;  /* one per thread, where all share the block of A */
};

/* What a thread reads next, of which it fetches some lines before each tile: `left` times a line each of `across` places. */
#define LINE (CACHE_LINE / (int)sizeof(real))
struct ahead {
	const real *at;
	int64_t across, across_step; /* elements from one place to the next */
	int64_t step, left, each;    /* elements to the next lines; lines left, and per tile */
};

static struct ahead fetch_ahead_of(const real *data, int64_t across, int64_t across_step, int64_t step, int64_t count, int64_t tiles)
{
	return (struct ahead){ data, across, across_step, step, count, tiles ? (count + tiles - 1) / tiles : 0 };
}

/* `across`: that of f, if possible as a constant. */
static inline __attribute__((always_inline)) void fetch_some(struct ahead *f, int64_t across)
{
	for (int64_t n = f->each; n > 0 && f->left > 0; n--, f->left--, f->at += f->step)
#pragma GCC unroll 8
		for (int64_t i = 0; i < across; i++)
			__builtin_prefetch(f->at + i * f->across_step, 0, 2);
}

/* Keeps the compiler from computing addresses ahead, of which it would have more than there are registers. */
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

static int64_t round_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Returns true if A is stored by columns and B by rows, as for gradients of weights: each panel of B then meets all of A, which is packed,
 * before the next. True of all parts of a product, however it is divided, since bits depend on it (if it is 1 deep, they do not). */
static bool is_column_product(const struct gemm *p)
{
	return p->a.rows == 1 && p->b.columns == 1;
}

/* Depth of blocks: as equal as can be. What fits one block is one: C is then written once and not read. */
static int64_t block_depth(const struct gemm *p)
{
	int64_t most = is_column_product(p) || p->k > KC_MAX ? KC_DEEP : KC_MAX, blocks = (p->k + most - 1) / most;
	return blocks ? (p->k + blocks - 1) / blocks : 0;
}

static int64_t block_columns(int64_t n)
{
	int64_t blocks = (n + NC_MAX - 1) / NC_MAX;
	return blocks ? round_up((n + blocks - 1) / blocks, NR) : 0;
}

/* Grows with n and k, so that enough for some sizes is enough for all smaller ones. */
size_t LOCAL(gemm_workspace)(int threads, int64_t n, int64_t k)
{
	int64_t columns = round_up(n < NC_MAX ? n : NC_MAX, NR);
	return (size_t)((k < KC_MAX ? k : KC_MAX) * (columns + (int64_t)threads * MC)) * sizeof(real);
}

/* Adds the sums of a panel's columns, of which `width` are real, to `to`. */
static void add_column_sums(real *restrict to, const real *restrict panel, int64_t depth, int64_t width)
{
	vec sum[2][NV] = { { { 0 } } };
	real total[NR];
	for (int64_t k = 0; k < depth; k++)
		for (int j = 0; j < NV; j++)
			sum[k % 2][j] += load(panel + k * NR + j * LANES);
	for (int j = 0; j < NV; j++)
		store(total + j * LANES, sum[0][j] + sum[1][j]);
	for (int64_t j = 0; j < width; j++)
		to[j] += total[j];
}

static void pack_columns(const struct blocks *b, real *panel, int64_t column, int64_t width, bool is_packed)
{
	const struct matrix *m = &b->p->b;
	int64_t depth = b->k1 - b->k0;
	if (!is_packed)
		pack_panel_b(panel, m->data + b->k0 * m->rows + column * m->columns, m->rows, m->columns, depth, width);
	if (b->p->column_sums)
		add_column_sums(b->p->column_sums + column, panel, depth, width);
}

static void pack_b_panels(void *context, int64_t item, int thread)
{
	const struct blocks *b = context;
	(void)thread;
	const struct matrix *m = &b->p->b;
	int64_t depth = b->k1 - b->k0, columns = b->panels * NR, first = b->n0 + item * columns;
	int64_t end = first + columns < b->n1 ? first + columns : b->n1;
	int64_t whole = m->columns == 1 ? (end - first) / NR : 0;
	const real *from = m->data + b->k0 * m->rows + first * m->columns;
	real *panels = b->b_panels + item * columns * depth;
	pack_panels_b(panels, from, m->rows, depth, whole);
	for (int64_t column = first; column < end; column += NR) {
		real *panel = panels + (column - first) * depth;
		int64_t width = end - column < NR ? end - column : NR;
		pack_columns(b, panel, column, width, column - first < whole * NR);
	}
}

/* With AVX-512 the compiler finds registers for all sums only where there is nothing else in a function. */
#ifdef __AVX512F__
#define MULTIPLY __attribute__((noinline))
#else
#define MULTIPLY inline __attribute__((always_inline))
#endif

/* `a`: rows of A, a_step apart, or (a_step 0) a packed panel. */
static MULTIPLY void multiply(int64_t depth, const real *a, int64_t a_step, const real *b, real *c, int64_t ldc, bool add, const real *bias)
{
	if (a_step)
		micro_kernel_at(depth, a, a_step, 1, b, c, ldc, add, bias);
	else
		micro_kernel(depth, a, b, c, ldc, add, bias);
}

/* A row or a column of tiles of C: elements from the operands and the result of one to those of the next. */
struct tiles {
	int64_t count;
	const real *a, *b;
	int64_t a_step; /* as for multiply() */
	int64_t next_a, next_b;
	int64_t row, column, next_row, next_column; /* of C */
};

static bool adds(const struct blocks *b)
{
	return b->p->accumulate || b->k0 > 0;
}

static const real *bias_of(const struct blocks *b, int64_t column)
{
	return b->k0 == 0 && b->p->bias ? b->p->bias + column : NULL;
}

/* Whole tiles. What decides between loops is known when this is compiled: a tile takes few instructions but its products. */
static inline __attribute__((always_inline)) void multiply_alike(const struct blocks *b, const struct tiles *t, bool in_place, bool add,
                                                                 struct ahead *next)
{
	int64_t depth = b->k1 - b->k0, ldc = b->p->ldc, next_c = t->next_row * ldc + t->next_column;
	const real *a = t->a, *panel = t->b, *bias = bias_of(b, t->column);
	real *c = b->p->c + t->row * ldc + t->column;
	for (int64_t left = t->count; left > 0; left--) {
		fetch_some(next, in_place ? MR : next->across);
		multiply(depth, a, in_place ? t->a_step : 0, panel, c, ldc, add, bias);
		a += t->next_a;
		panel += t->next_b;
		c += next_c;
		bias = bias ? bias + t->next_column : NULL;
		OPAQUE(c);
	}
}

static void multiply_tiles(const struct blocks *b, const struct tiles *t, struct ahead *next)
{
	bool add = adds(b);
	if (t->a_step && add)
		multiply_alike(b, t, true, true, next);
	else if (t->a_step)
		multiply_alike(b, t, true, false, next);
	else if (add)
		multiply_alike(b, t, false, true, next);
	else
		multiply_alike(b, t, false, false, next);
}

/* A tile at the end of rows or columns, of which `rows` x `columns` are real, the rest padding. */
static void multiply_last(const struct blocks *b, const real *a, int64_t a_step, const real *panel, int64_t row, int64_t column,
                          int64_t rows, int64_t columns)
{
	real *c = b->p->c + row * b->p->ldc + column, whole[MR * NR], padded_bias[NR] = { 0 };
	const real *bias = bias_of(b, column);
	bool add = adds(b);
	if (bias)
		memcpy(padded_bias, bias, (size_t)columns * sizeof *bias);
	if (add)
		for (int64_t i = 0; i < rows; i++)
			memcpy(whole + i * NR, c + i * b->p->ldc, (size_t)columns * sizeof *c);
	multiply(b->k1 - b->k0, a, a_step, panel, whole, NR, add, bias ? padded_bias : NULL);
	for (int64_t i = 0; i < rows; i++)
		memcpy(c + i * b->p->ldc, whole + i * NR, (size_t)columns * sizeof *c);
}

/* `rows` rows of A in packed panels by one panel of B, of `columns` columns. */
static void multiply_panel(const struct blocks *b, const real *a, const real *panel, int64_t row, int64_t column, int64_t rows,
                           int64_t columns, struct ahead *next)
{
	int64_t depth = b->k1 - b->k0, whole = columns == NR ? rows / MR : 0;
	const struct tiles t = { .count = whole, .a = a, .b = panel, .next_a = MR * depth, .row = row, .column = column, .next_row = MR };
	multiply_tiles(b, &t, next);
	for (int64_t i = whole * MR; i < rows; i += MR) {
		fetch_some(next, next->across);
		multiply_last(b, a + i * depth, 0, panel, row + i, column, rows - i < MR ? rows - i : MR, columns);
	}
}

/* Panels of `rows` rows. A matrix stored by columns is read column by column, so that memory is read in order. */
static void pack_a_block(real *restrict to, const real *restrict from, const struct matrix *m, int64_t depth, int64_t rows)
{
	int64_t whole = m->rows == 1 ? rows / MR * MR : 0;
	for (int64_t k = 0; whole && k < depth; k++) {
		const real *column = from + k * m->columns;
		for (int64_t row = 0; row < whole; row += CACHE_LINE / (int)sizeof *to)
			__builtin_prefetch(column + ROWS_AHEAD * m->columns + row);
		for (int64_t row = 0; row < whole; row += MR)
			memcpy(to + row * depth + k * MR, column + row, MR * sizeof *to);
	}
	for (int64_t row = whole; row < rows; row += MR)
		pack_panel_a(to + row * depth, from + row * m->rows, m->rows, m->columns, depth, rows - row < MR ? rows - row : MR);
}

/* Returns true if the kernel reads rows of A where they are. Twelve rows take more registers for addresses than there are; and rows that
 * are a multiple of 8 KiB apart lie in so few sets of a cache that a block of them does not stay there. */
static bool is_read_in_place(const struct matrix *m)
{
	return MR <= 6 && m->columns == 1 && m->rows * (int64_t)sizeof(real) % 8192 != 0;
}

/* The rows of A and the panels of B of an item; rows of items like it. */
struct item {
	int64_t row, row_end, panel, panel_end, rows;
};

/* Items that follow each other have the same panels of B if rows of A are read in place, else the same rows of A. */
static struct item find_item(const struct blocks *b, int64_t item)
{
	int64_t row_item = b->in_place ? item % b->row_items : item / b->column_items;
	int64_t column_item = b->in_place ? item / b->row_items : item % b->column_items;
	bool last = row_item >= b->equal;
	struct item found = { .row = last ? b->equal * b->mc + (row_item - b->equal) * MC_LAST : row_item * b->mc };
	found.rows = last ? MC_LAST : b->mc;
	found.row_end = found.row + found.rows < b->p->m ? found.row + found.rows : b->p->m;
	split_range((b->n1 - b->n0 + NR - 1) / NR, b->column_items, column_item, &found.panel, &found.panel_end);
	return found;
}

/* MR rows of A, the item's `row`th and those after it, where they are, by the panels of columns [column, end). Meanwhile fetches the rows
 * from the item's `next`th on. */
static void multiply_rows(const struct blocks *b, const struct item *at, int64_t row, int64_t next, const real *panels, int64_t column,
                          int64_t end)
{
	const struct matrix *m = &b->p->a;
	int64_t depth = b->k1 - b->k0, whole = (end - column) / NR, last = column + whole * NR;
	const real *rows = m->data + at->row * m->rows + b->k0;
	const struct tiles t = { .count = whole,
		                 .a = rows + row * m->rows,
		                 .b = panels,
		                 .a_step = m->rows,
		                 .next_b = NR * depth,
		                 .row = at->row + row,
		                 .column = column,
		                 .next_column = NR };
	struct ahead ahead = { .left = 0 };
	if (at->row + next + MR <= b->p->m)
		ahead = fetch_ahead_of(rows + next * m->rows, MR, m->rows, LINE, (depth + LINE - 1) / LINE, whole);
	multiply_tiles(b, &t, &ahead);
	if (last < end)
		multiply_last(b, t.a, m->rows, panels + whole * NR * depth, t.row, last, MR, end - last);
}

static void compute_block(void *context, int64_t item, int thread)
{
	const struct blocks *b = context;
	const struct matrix *m = &b->p->a;
	const struct item at = find_item(b, item);
	int64_t depth = b->k1 - b->k0, count = at.row_end - at.row, unpacked = b->in_place ? count / MR * MR : 0;
	const real *rows = m->data + at.row * m->rows + b->k0 * m->columns;
	real *a = b->a_panels + (int64_t)thread * MC * b->kc;
	pack_a_block(a + unpacked * depth, rows + unpacked * m->rows, m, depth, count - unpacked);
	int64_t column = b->n0 + at.panel * NR, end = b->n0 + at.panel_end * NR;
	end = end < b->n1 ? end : b->n1;
	const real *panels = b->b_panels + at.panel * NR * depth;
	for (int64_t i = 0; i < unpacked; i += MR)
		multiply_rows(b, &at, i, i + MR < unpacked ? i + MR : at.rows * b->threads, panels, column, end);
	struct ahead nothing = { .left = 0 };
	for (; unpacked < count && column < end; column += NR, panels += NR * depth)
		multiply_panel(b, a + unpacked * depth, panels, at.row + unpacked, column, count - unpacked,
		               end - column < NR ? end - column : NR, &nothing);
}

/* Divides C into blocks so that all threads have equal work, which no result depends on: a multiple of the number of threads in rows or, if
 * there are few rows, also in columns. A thread that takes the last of many blocks lets the others wait: these are small. */
static void share_out(struct blocks *b, int threads)
{
	b->threads = threads;
	b->in_place = is_read_in_place(&b->p->a);
	int64_t m = b->p->m, blocks = round_up((m + MC - 1) / MC, threads);
	b->mc = round_up((m + blocks - 1) / blocks, MR);
	b->row_items = b->equal = (m + b->mc - 1) / b->mc;
	if (b->in_place && threads > 1 && b->equal > 4 * threads) {
		b->equal -= 2 * threads;
		b->row_items = b->equal + (m - b->equal * b->mc + MC_LAST - 1) / MC_LAST;
	}
}

/* The parts into which an item's block of rows divides `panels` panels of B. */
static int64_t column_parts(const struct blocks *b, int64_t panels)
{
	int64_t few_rows = (4 * b->threads + b->row_items - 1) / b->row_items, kept = b->in_place ? panels / PANELS_KEPT : 1;
	int64_t parts = few_rows > kept ? few_rows : kept;
	return parts > panels ? panels : parts;
}

/* ---- threads that share a block of A, for gradients of weights: C is small then, and both operands, which are much larger, are read from
 * memory once, to be packed. A thread packs a panel of B when it comes to it, multiplies the whole block of A by it, and meanwhile fetches
 * the next one. */

/* Rows of A for which the workspace has room beside a panel of B per thread. */
static int64_t shared_rows(const struct gemm *p, int threads)
{
	int64_t room = block_columns(p->n) + threads * (MC - NR);
	return (room < MC_SHARED ? room : MC_SHARED) / MR * MR;
}

static bool shares_a(const struct gemm *p, int threads)
{
	return is_column_product(p) && p->a.columns != 1 && p->m <= shared_rows(p, threads);
}

static void pack_shared(void *context, int64_t item, int thread)
{
	const struct blocks *b = context;
	const struct matrix *m = &b->p->a;
	int64_t depth = b->k1 - b->k0, row0 = item * MC, row1 = row0 + MC < b->p->m ? row0 + MC : b->p->m;
	(void)thread;
	pack_a_block(b->a_panels + row0 * depth, m->data + row0 + b->k0 * m->columns, m, depth, row1 - row0);
}

static void multiply_shared(void *context, int64_t item, int thread)
{
	const struct blocks *b = context;
	const struct gemm *p = b->p;
	int64_t depth = b->k1 - b->k0, tiles = (p->m + MR - 1) / MR, panels = (p->n + NR - 1) / NR, panel, end, later, later_end;
	real *packed = b->b_panel + thread * b->kc * NR;
	split_range(panels, b->column_items, item, &panel, &end);
	split_range(panels, b->column_items, item + b->threads, &later, &later_end);
	for (; panel < end; panel++) {
		int64_t column = panel * NR, columns = p->n - column < NR ? p->n - column : NR, after = panel + 1 < end ? panel + 1 : later;
		struct ahead next = { .left = 0 };
		pack_columns(b, packed, column, columns, false);
		if (after < panels)
			next = fetch_ahead_of(p->b.data + b->k0 * p->b.rows + after * NR, (NR + LINE - 1) / LINE, LINE, p->b.rows, depth,
			                      tiles);
		multiply_panel(b, b->a_panels, packed, 0, column, p->m, columns, &next);
	}
}

static void gemm_shared(struct hspmd_thread_pool *pool, struct blocks *b, real *workspace)
{
	const struct gemm *p = b->p;
	int threads = hspmd_thread_pool_threads(pool);
	int64_t panels = (p->n + NR - 1) / NR, most = threads > 1 ? SHARED_ITEMS * threads : 1;
	b->a_panels = workspace;
	b->b_panel = workspace + b->kc * shared_rows(p, threads);
	b->threads = threads;
	b->column_items = panels && panels < most ? panels : most;
	for (b->k0 = 0; b->k0 < p->k; b->k0 = b->k1) {
		b->k1 = b->k0 + b->kc < p->k ? b->k0 + b->kc : p->k;
		double elements = (double)(b->k1 - b->k0) * (double)p->m;
		int64_t items = (p->m + MC - 1) / MC;
		hspmd_thread_pool_for(pool, items, elements / (double)items * MOVE_NS, pack_shared, b);
		hspmd_thread_pool_for(pool, b->column_items, elements * (double)p->n / (double)b->column_items * PRODUCT_NS,
		                      multiply_shared, b);
	}
}

void LOCAL(gemm)(struct hspmd_thread_pool *pool, const struct gemm *p, void *workspace)
{
	if (p->m == 0)
		return;
	struct blocks b = { .p = p, .kc = block_depth(p) };
	if (shares_a(p, hspmd_thread_pool_threads(pool))) {
		gemm_shared(pool, &b, workspace);
		return;
	}
	int64_t nc = block_columns(p->n);
	b.b_panels = workspace;
	b.a_panels = b.b_panels + b.kc * nc;
	int threads = hspmd_thread_pool_threads(pool);
	share_out(&b, threads);
	for (b.n0 = 0; b.n0 < p->n; b.n0 = b.n1) {
		b.n1 = b.n0 + nc < p->n ? b.n0 + nc : p->n;
		int64_t panels = (b.n1 - b.n0 + NR - 1) / NR;
		b.column_items = column_parts(&b, panels);
		b.panels = panels / threads < PANELS_MAX ? panels / threads : PANELS_MAX;
		b.panels = b.panels > 1 ? b.panels : 1;
		for (b.k0 = 0; b.k0 < p->k; b.k0 = b.k1) {
			b.k1 = b.k0 + b.kc < p->k ? b.k0 + b.kc : p->k;
			double depth = (double)(b.k1 - b.k0), columns = (double)(b.n1 - b.n0);
			int64_t items = b.row_items * b.column_items;
			hspmd_thread_pool_for(pool, (panels + b.panels - 1) / b.panels, depth * (double)(b.panels * NR) * MOVE_NS,
			                      pack_b_panels, &b);
			hspmd_thread_pool_for(pool, items, (double)p->m * columns * depth / (double)items * PRODUCT_NS, compute_block, &b);
		}
	}
}
