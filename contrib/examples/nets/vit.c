/* SPDX-License-Identifier: Apache-2.0 */
/* Vision transformer (Dosovitskiy et al., arXiv 2010.11929). Inputs: "image" [samples, 3, size, size] floats and "label" [samples, 1]
 * integers. Plan layers: 0: patches, 1..blocks, and the head. */
#include "job.h"

struct vit {
	struct images images;
	int64_t patch, width, heads, inner, blocks;
	double dropout;
};
static const struct vit vit_base = { { 224, 1000 }, 16, 768, 12, 3072, 12, 0 };

static int vit_layers(const struct vit *how)
{
	return (int)how->blocks + 2;
}

/* Each patch is a position; the first position is a parameter, from which the class is read at the end. */
static int vit_patches(const struct vit *how, struct hspmd_net *net)
{
	int64_t samples = hspmd_net_samples(net), width = how->width, size = how->images.size, row = size / how->patch, count = row * row;
	struct hspmd_window window = { .stride = { how->patch, how->patch } };
	int image = hspmd_net_float_input(net, "image", 3, DIMS(3, size, size));
	int weight = parameter(net, "patches", "weight", 4, DIMS(width, 3, how->patch, how->patch), 0, 0.02);
	int x = hspmd_net_conv2d(net, image, weight, parameter(net, "patches", "bias", 1, &width, 0, 0), &window, 1);
	x = hspmd_net_transpose(net, hspmd_net_reshape(net, x, 3, DIMS(samples, width, count)), (int[]){ 0, 2, 1 });
	int class = hspmd_net_repeat(net, parameter(net, "", "class", 2, DIMS(1, width), 0, 0.02), 3, DIMS(samples, 1, width));
	x = hspmd_net_concat(net, (int[]){ class, x }, 2, 1);
	return hspmd_net_add(net, x, parameter(net, "", "positions", 2, DIMS(count + 1, width), 0, 0.02));
}

static void vit_build(void *context, struct hspmd_net *net)
{
	const struct vit *how = context;
	char name[96];
	int x = hspmd_net_dropout(net, vit_patches(how, net), how->dropout);
	for (int i = 0; i < how->blocks; i++) {
		hspmd_net_layer(net, i + 1);
		int y = layer_norm(net, named(&name, "blocks", i, "norm1"), x, 1e-6);
		x = hspmd_net_add(net, x, self_attention(net, "blocks", i, y, how->heads, -1, how->dropout));
		y = layer_norm(net, named(&name, "blocks", i, "norm2"), x, 1e-6);
		x = hspmd_net_add(net, x, hspmd_net_dropout(net, mlp(net, "blocks", i, y, how->inner), how->dropout));
	}
	hspmd_net_layer(net, vit_layers(how) - 1);
	x = hspmd_net_slice(net, layer_norm(net, "norm", x, 1e-6), 1, 0, 1);
	hspmd_net_loss(net, linear(net, "head", x, how->images.classes, WHOLE, 1, 1), hspmd_net_integer_input(net, "label", 1, DIMS(1)));
}

/* ---- the model of a job: images of job.h */

static int vit_configure(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err)
{
	struct vit *how = malloc(sizeof *how);
	if (!how)
		return failed(err, "out of memory");
	*how = vit_base;
	const struct setting settings[] = {
		{ "size", &how->images.size, 1, NULL }, { "patch", &how->patch, 1, NULL },     { "width", &how->width, 1, NULL },
		{ "heads", &how->heads, 1, NULL },      { "inner", &how->inner, 1, NULL },     { "classes", &how->images.classes, 1, NULL },
		{ "blocks", &how->blocks, 1, NULL },    { "dropout", NULL, 0, &how->dropout },
	};
	if (read_settings(config, settings, COUNT(settings), err)) {
		free(how);
		return -1;
	}
	sizes->layers = vit_layers(how);
	*context = how;
	return 0;
}

const struct hspmd_model_definition hspmd_model = {
	.version = HSPMD_MODEL_VERSION,
	.name = "vit",
	.configure = vit_configure,
	.destroy = free,
	.build = vit_build,
	.open_samples = open_images,
	.read_sample = read_image,
	.close_samples = close_records,
};
