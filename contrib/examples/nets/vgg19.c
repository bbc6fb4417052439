/* SPDX-License-Identifier: Apache-2.0 */
/* VGG19 (Simonyan and Zisserman, arXiv 1409.1556): 16 convolutions in five groups, each of which ends with pooling, and three linear
 * layers. Inputs: "image" [samples, 3, size, size] floats and "label" [samples, 1] integers. Plan layers: 0..4: the groups, 5: the
 * classifier. */
#include "job.h"

#include <math.h>

struct vgg19 {
	struct images images;
	int64_t channels, inner; /* channels: of the first group */
};
static const struct vgg19 vgg19_imagenet = { { 224, 1000 }, 64, 4096 };
enum { VGG19_LAYERS = 6 };

/* Several convolutions of 3 x 3, and pooling. */
static int vgg19_group(struct hspmd_net *net, int group, int x, int64_t channels, int count)
{
	const struct hspmd_window three = { .padding = { 1, 1 } }, two = { .size = { 2, 2 } };
	for (int i = 0; i < count; i++) {
		char prefix[64];
		int64_t in = hspmd_net_dim(net, x, 1);
		snprintf(prefix, sizeof prefix, "features.%d.%d", group, i);
		int weight = parameter(net, prefix, "weight", 4, DIMS(channels, in, 3, 3), 0, sqrt(2 / (9 * (double)in)));
		x = hspmd_net_relu(net, hspmd_net_conv2d(net, x, weight, parameter(net, prefix, "bias", 1, &channels, 0, 0), &three, 1));
	}
	return hspmd_net_max_pool2d(net, x, &two);
}

static void vgg19_build(void *context, struct hspmd_net *net)
{
	static const int counts[] = { 2, 2, 4, 4, 4 }, widths[] = { 1, 2, 4, 8, 8 };
	const struct vgg19 *how = context;
	int x = hspmd_net_float_input(net, "image", 3, DIMS(3, how->images.size, how->images.size));
	for (int g = 0; g < 5; g++) {
		hspmd_net_layer(net, g);
		x = vgg19_group(net, g, x, how->channels * widths[g], counts[g]);
	}
	hspmd_net_layer(net, 5);
	x = hspmd_net_reshape(net, x, 3, DIMS(hspmd_net_samples(net), 1, -1));
	x = hspmd_net_relu(net, linear(net, "classifier.0", x, how->inner, BY_OUTPUT, 1, 1));
	x = hspmd_net_relu(net, linear(net, "classifier.1", x, how->inner, BY_INPUT, 1, 1));
	x = linear(net, "classifier.2", x, how->images.classes, WHOLE, 1, 1);
	hspmd_net_loss(net, x, hspmd_net_integer_input(net, "label", 1, DIMS(1)));
}

/* ---- the model of a job: images of job.h */

static int vgg19_configure(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err)
{
	struct vgg19 *how = malloc(sizeof *how);
	if (!how)
		return failed(err, "out of memory");
	*how = vgg19_imagenet;
	const struct setting settings[] = {
		{ "size", &how->images.size, 1, NULL },
		{ "channels", &how->channels, 1, NULL },
		{ "inner", &how->inner, 1, NULL },
		{ "classes", &how->images.classes, 1, NULL },
	};
	if (read_settings(config, settings, COUNT(settings), err)) {
		free(how);
		return -1;
	}
	sizes->layers = VGG19_LAYERS;
	*context = how;
	return 0;
}

const struct hspmd_model_definition hspmd_model = {
	.version = HSPMD_MODEL_VERSION,
	.name = "vgg19",
	.configure = vgg19_configure,
	.destroy = free,
	.build = vgg19_build,
	.open_samples = open_images,
	.read_sample = read_image,
	.close_samples = close_records,
};
