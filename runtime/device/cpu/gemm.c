/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix product (the blocking of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Both operands are packed
 * into panels that the innermost kernel reads in order: A in panels of MR rows, B in panels of NR columns, both along k. A block of B is packed by all threads
 * together and shared; then threads take blocks of C. An element of C is always summed in the same order, so its bits depend neither on the threads nor on
 * how rows and columns are shared among devices. */
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/micro.h"

#define KC_MAX 384            /* depth of a block: a panel of B stays in the first-level cache */
#define MC (MR * 12)          /* rows of a block of A: stays in the second-level cache */
#define NC_MAX (NR * 96)      /* columns of a block of B: shared by the threads in the last-level cache */

struct blocks {
	const struct product *p;
	int64_t kc, k0, k1; /* depth of blocks; this block's range of k */
	int64_t n0, n1;     /* columns of this block of B */
	int64_t row_items, column_items;
	real *b_panels;
	real *a_panels; /* one block for every thread */
};

static int64_t round_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Depth of blocks: as equal as can be. */
static int64_t block_depth(int64_t k)
{
	int64_t blocks = (k + KC_MAX - 1) / KC_MAX;
	return blocks ? (k + blocks - 1) / blocks : 0;
}

static int64_t block_columns(int64_t n)
{
	int64_t blocks = (n + NC_MAX - 1) / NC_MAX;
	return blocks ? round_up((n + blocks - 1) / blocks, NR) : 0;
}

/* Grows with n and k, so that what is enough for some sizes is enough for all smaller ones. */
size_t LOCAL(multiply_workspace)(int threads, int64_t n, int64_t k)
{
	int64_t columns = round_up(n < NC_MAX ? n : NC_MAX, NR);
	return (size_t)((k < KC_MAX ? k : KC_MAX) * (columns + (int64_t)threads * MC)) * sizeof(real);
}

static void pack_b_panel(void *context, int64_t item, int thread)
{
	struct blocks *b = context;
	(void)thread;
	const struct matrix *m = &b->p->b;
	int64_t column = b->n0 + item * NR, depth = b->k1 - b->k0;
	int64_t width = b->n1 - column < NR ? b->n1 - column : NR;
	pack_panel_b(b->b_panels + item * NR * depth, m->data + b->k0 * m->rows + column * m->columns, m->rows, m->columns, depth, width);
}

/* One tile of C; `rows` x `columns` of it are real, the rest padding. */
static void tile(const struct blocks *b, const real *a, const real *bp, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
	const struct product *p = b->p;
	bool first = b->k0 == 0;
	bool add = p->accumulate || !first;
	const real *bias = first && p->bias ? p->bias + column : NULL;
	real *c = p->c + row * p->ldc + column;
	if (rows == MR && columns == NR) {
		micro_kernel(b->k1 - b->k0, a, bp, c, p->ldc, add, bias);
		return;
	}
	real whole[MR * NR], padded_bias[NR] = { 0 };
	if (bias)
		memcpy(padded_bias, bias, (size_t)columns * sizeof *bias);
	if (add)
		for (int64_t i = 0; i < rows; i++)
			memcpy(whole + i * NR, c + i * p->ldc, (size_t)columns * sizeof *c);
	micro_kernel(b->k1 - b->k0, a, bp, whole, NR, add, bias ? padded_bias : NULL);
	for (int64_t i = 0; i < rows; i++)
		memcpy(c + i * p->ldc, whole + i * NR, (size_t)columns * sizeof *c);
}

static void compute_block(void *context, int64_t item, int thread)
{
	struct blocks *b = context;
	const struct matrix *m = &b->p->a;
	int64_t depth = b->k1 - b->k0;
	int64_t row0 = item / b->column_items * MC, row1 = row0 + MC < b->p->m ? row0 + MC : b->p->m;
	int64_t panels = (b->n1 - b->n0 + NR - 1) / NR, panel0, panel1;
	cut(panels, b->column_items, item % b->column_items, &panel0, &panel1);
	real *a = b->a_panels + (int64_t)thread * MC * b->kc;
	for (int64_t row = row0; row < row1; row += MR)
		pack_panel_a(a + (row - row0) * depth, m->data + row * m->rows + b->k0 * m->columns, m->rows, m->columns, depth,
			     row1 - row < MR ? row1 - row : MR);
	for (int64_t panel = panel0; panel < panel1; panel++) {
		int64_t column = b->n0 + panel * NR;
		int64_t columns = b->n1 - column < NR ? b->n1 - column : NR;
		for (int64_t row = row0; row < row1; row += MR)
			tile(b, a + (row - row0) * depth, b->b_panels + panel * NR * depth, row, column, row1 - row < MR ? row1 - row : MR,
			     columns);
	}
}

void LOCAL(multiply)(struct hspmd_pool *pool, const struct product *p, void *workspace)
{
	if (p->m == 0)
		return;
	struct blocks b = { .p = p, .kc = block_depth(p->k) };
	int64_t nc = block_columns(p->n);
	b.b_panels = workspace;
	b.a_panels = b.b_panels + b.kc * nc;
	b.row_items = (p->m + MC - 1) / MC;
	/* Few rows: share out columns too, so that every thread has work. */
	int64_t wanted = 4 * hspmd_pool_threads(pool);
	b.column_items = b.row_items < wanted ? (wanted + b.row_items - 1) / b.row_items : 1;
	for (b.n0 = 0; b.n0 < p->n; b.n0 = b.n1) {
		b.n1 = b.n0 + nc < p->n ? b.n0 + nc : p->n;
		int64_t panels = (b.n1 - b.n0 + NR - 1) / NR;
		if (b.column_items > panels)
			b.column_items = panels;
		for (b.k0 = 0; b.k0 < p->k; b.k0 = b.k1) {
			b.k1 = b.k0 + b.kc < p->k ? b.k0 + b.kc : p->k;
			hspmd_pool_for(pool, panels, pack_b_panel, &b);
			hspmd_pool_for(pool, b.row_items * b.column_items, compute_block, &b);
		}
	}
}
