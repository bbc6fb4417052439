/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_spank.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct fake_spank fake_spank;

void fake_spank_reset(void)
{
	memset(&fake_spank, 0, sizeof fake_spank);
	fake_spank.context = S_CTX_ALLOCATOR;
}

void fake_spank_put(struct fake_spank_pair *p, const char *name, const char *value)
{
	while (*p->name && strcmp(p->name, name) != 0)
		p++;
	snprintf(p->name, sizeof p->name, "%s", name);
	snprintf(p->value, sizeof p->value, "%s", value);
}

const char *fake_spank_get(const struct fake_spank_pair *p, const char *name)
{
	while (*p->name && strcmp(p->name, name) != 0)
		p++;
	return *p->name ? p->value : NULL;
}

spank_context_t spank_context(void)
{
	return fake_spank.context;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *o)
{
	(void)spank;
	if (fake_spank.refuses_options || fake_spank.option_count == 8)
		return ESPANK_ERROR;
	fake_spank.options[fake_spank.option_count++] = *o;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	(void)spank, (void)item;
	return ESPANK_NOT_AVAIL;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *to, int size)
{
	const char *value = fake_spank_get(fake_spank.environment, name);
	(void)spank;
	if (!value)
		return ESPANK_ENV_NOEXIST;
	return snprintf(to, (size_t)size, "%s", value) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	if (!overwrite && fake_spank_get(fake_spank.environment, name))
		return ESPANK_ENV_EXISTS;
	fake_spank_put(fake_spank.environment, name, value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	if (fake_spank.refuses_environment || (!overwrite && fake_spank_get(fake_spank.control, name)))
		return ESPANK_ERROR;
	fake_spank_put(fake_spank.control, name, value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	if (fake_spank_get(fake_spank.control, name))
		fake_spank_put(fake_spank.control, name, "");
	return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	vsnprintf(fake_spank.error, sizeof fake_spank.error, format, ap);
	va_end(ap);
}

void slurm_info(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	vsnprintf(fake_spank.info, sizeof fake_spank.info, format, ap);
	va_end(ap);
}

/* ---- Slurm's table of options, and its functions, which are not in its headers */

int opt;
char *slurm_option_get(void *table, const char *name);
bool slurm_option_set(void *table, const char *name, const char *value, bool early);

char *slurm_option_get(void *table, const char *name)
{
	return table == &opt ? (char *)fake_spank_get(fake_spank.asked, name) : NULL;
}

bool slurm_option_set(void *table, const char *name, const char *value, bool early)
{
	if (table != &opt || early)
		return false;
	fake_spank_put(fake_spank.set, name, value);
	return true;
}
