/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/lib/object.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/model/own.h"

#define SYMBOL "hspmd_model"

static void report(void (*at)(const char *doing), const char *doing)
{
	if (at)
		at(doing);
}

/* A file in memory rather than the file: a file that is overwritten while it is mapped changes the code of this process. */
static void *load(const void *bytes, size_t size, const char *name, struct hspmd_error *err)
{
	char path[64];
	int fd = hspmd_own_memory_file(name, bytes, size);
	if (fd < 0) {
		hspmd_fail_errno(err, "a file in memory for the object");
		return NULL;
	}
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const char *why = library ? NULL : dlerror();
	if (why && !strncmp(why, path, strlen(path))) /* it names a descriptor */
		why += strlen(path) + strspn(why + strlen(path), ": ");
	if (!library)
		hspmd_fail(err, "cannot be loaded: %s", why ? why : "for an unknown reason");
	close(fd);
	return library;
}

static int check_sizes(const struct hspmd_model_sizes *s, struct hspmd_error *err)
{
	if (s->layers < 1 || s->layers > HSPMD_OWN_LAYERS_MAX)
		return hspmd_fail(err, "sizes.layers: expected 1..%d, got %d", HSPMD_OWN_LAYERS_MAX, s->layers);
	if (s->vocabulary < 0 || s->vocabulary > INT32_MAX)
		return hspmd_fail(err, "sizes.vocabulary: expected 0..%d, got %lld", INT32_MAX, (long long)s->vocabulary);
	if (s->max_length < 0)
		return hspmd_fail(err, "sizes.max_length: expected 0 or more, got %lld", (long long)s->max_length);
	return 0;
}

static int check(const struct hspmd_model_definition *d, struct hspmd_error *err)
{
	if (d->version != HSPMD_MODEL_VERSION)
		return hspmd_fail(err, SYMBOL ".version is %d, expected %d: compile it again with this hspmd's headers ('hspmd build')",
		                  d->version, HSPMD_MODEL_VERSION);
	if (!d->name || !*d->name)
		return hspmd_fail(err, SYMBOL ".name is missing");
	if (!d->build)
		return hspmd_fail(err, SYMBOL ".build is missing");
	if (!d->open_samples != !d->read_sample)
		return hspmd_fail(err, SYMBOL " has one of open_samples and read_sample: expected both or neither");
	return 0;
}

/* What a function of the user's that failed has said. */
static int failed_in(const char *function, struct hspmd_error *err)
{
	err->text[HSPMD_ERROR_MAX - 1] = '\0';
	hspmd_sanitize_line(err->text, strlen(err->text));
	return err->text[0] ? hspmd_error_prefix(err, "%s", function) : hspmd_fail(err, "%s failed without saying why", function);
}

static int configure(struct hspmd_own_object *o, const char *config, struct hspmd_error *err)
{
	struct hspmd_error why = { "" };
	if (!o->definition->configure)
		return strcmp(config, "{}") ? hspmd_fail(err, "the model takes no model_config: it has no function configure") : 0;
	if (!o->definition->configure(config, &o->sizes, &o->net.context, &why))
		return 0;
	failed_in("configure", &why);
	return hspmd_fail(err, "%s", why.text);
}

struct hspmd_own_object *hspmd_own_object_open(const void *bytes, size_t size, const char *name, const char *config,
                                               void (*at)(const char *doing), struct hspmd_error *err)
{
	struct hspmd_own_object *o = calloc(1, sizeof *o);
	if (!o) {
		hspmd_fail_memory(err, "loading a model");
		return NULL;
	}
	report(at, "its loading");
	void *library = load(bytes, size, name, err);
	o->definition = library ? dlsym(library, SYMBOL) : NULL;
	if (library && !o->definition)
		hspmd_fail(err, "it has no symbol %s (struct hspmd_model_definition in hspmd.h)", SYMBOL);
	int status = !o->definition || check(o->definition, err) ? -1 : 0;
	if (!status) {
		o->sizes = o->definition->sizes;
		report(at, "its function configure");
		status = configure(o, config, err) || check_sizes(&o->sizes, err);
	}
	if (status) {
		free(o);
		return NULL;
	}
	o->net.build = o->definition->build;
	o->net.layers = o->sizes.layers;
	return o;
}

void hspmd_own_object_close(struct hspmd_own_object *o)
{
	if (o && o->definition->destroy)
		o->definition->destroy(o->net.context);
	free(o);
}

/* ---- samples */

struct samples {
	const struct hspmd_model_definition *definition;
	void *samples;
};

static int read_sample(void *context, const char *name, int64_t sample, int64_t start, int64_t length, void *to, struct hspmd_error *err)
{
	struct samples *s = context;
	struct hspmd_error why = { "" };
	if (!s->definition->read_sample(s->samples, name, sample, start, length, to, &why))
		return 0;
	failed_in("read_sample", &why);
	return hspmd_fail(err, "input %s of sample %lld: %s", name, (long long)sample, why.text);
}

int hspmd_own_object_open_samples(const struct hspmd_own_object *o, const struct hspmd_job *job, bool validation,
                                  struct hspmd_own_samples *out, struct hspmd_error *err)
{
	const struct hspmd_model_data data = {
		.files = (const char *const *)(validation ? job->valid : job->train),
		.file_count = validation ? job->valid_count : job->train_count,
		.validation = validation,
		.seed = job->seed,
		.length = job->seq_len,
	};
	struct hspmd_error why = { "" };
	struct samples *s = calloc(1, sizeof *s);
	int64_t count = 0;
	*out = (struct hspmd_own_samples){ .read = read_sample, .context = s, .seed = job->seed, .validation = validation };
	if (!s)
		return hspmd_fail_memory(err, "opening samples");
	if (!o->definition->open_samples)
		return hspmd_fail(err, "it has no functions open_samples and read_sample, which data of kind \"own\" need");
	if (!(s->samples = o->definition->open_samples(o->net.context, &data, &count, &why))) {
		failed_in("open_samples", &why);
		return hspmd_fail(err, "data.%s: %s", validation ? "valid" : "train", why.text);
	}
	s->definition = o->definition;
	out->count = count;
	if (count < 0 || (validation && !count))
		return hspmd_fail(err, "data.%s: open_samples counts %lld samples", validation ? "valid" : "train", (long long)count);
	return 0;
}

void hspmd_own_object_close_samples(struct hspmd_own_samples *samples)
{
	struct samples *s = samples->context;
	if (s && s->definition && s->definition->close_samples)
		s->definition->close_samples(s->samples);
	free(s);
	samples->context = NULL;
}
