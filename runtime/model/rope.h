/* SPDX-License-Identifier: Apache-2.0 */
/* Frequencies of rotary position embedding, from the keys rope_theta, rope_scaling and rope_parameters of a config.json:
 *   linear     positions divided by a factor (Chen et al., arXiv 2306.15595)
 *   dynamic    a larger base for sequences beyond the model's positions (NTK-aware scaling; Peng et al., arXiv 2309.00071, section 3.1)
 *   yarn       by wavelength, from unscaled to divided by the factor (same, section 3.2), and a factor for the result
 *   llama3     by wavelength, with a linear blend (Llama Team, arXiv 2407.21783, and the models' configs)
 *   longrope   a factor per frequency, one list for short and one for long sequences (Ding et al., arXiv 2402.13753) */
#ifndef HSPMD_MODEL_ROPE_H
#define HSPMD_MODEL_ROPE_H

#include "common/json.h"

#define HSPMD_ROPE_FREQUENCIES 128 /* most frequencies of a scaled rotation, two elements each */

enum hspmd_rope_kind { HSPMD_ROPE_PLAIN, HSPMD_ROPE_LINEAR, HSPMD_ROPE_DYNAMIC, HSPMD_ROPE_YARN, HSPMD_ROPE_LLAMA3, HSPMD_ROPE_LONG };

struct hspmd_rope {
	enum hspmd_rope_kind kind;
	double theta;
	int64_t dims;            /* elements of a head that are rotated */
	bool interleaved;        /* pairs of neighbours are rotated, else element i with element i + dims / 2 */
	double scale;            /* of the result */
	double factor, original; /* original: positions of the model before it was extended */
	double low, high;        /* llama3: low_freq_factor, high_freq_factor; yarn: the first and last frequency of the blend */
	double factors[2][HSPMD_ROPE_FREQUENCIES]; /* longrope: short, long */
};

/* Reads the keys of `root`; `layers` names an object inside rope_parameters ("full_attention"), NULL: none. r->theta is the default of the
 * model type, and r->dims is set. max_positions: the model's positions. Failures are kept in the document. */
void hspmd_rope_read(struct hspmd_json *root, const char *layers, int64_t max_positions, struct hspmd_rope *r);
/* Sets yarn: pairs that make more than `fast` rotations over the original positions are not scaled, those that make fewer than `slow` are
 * divided by the factor. whole: the blend begins and ends at whole numbers of pairs. r->theta and r->dims are set. */
void hspmd_rope_set_yarn(struct hspmd_rope *r, double factor, double original, double fast, double slow, bool whole);
/* Writes the dims / 2 frequencies for sequences of seq_len tokens. Not for HSPMD_ROPE_PLAIN. */
void hspmd_rope_frequencies(const struct hspmd_rope *r, int64_t seq_len, double *frequencies);

#endif
