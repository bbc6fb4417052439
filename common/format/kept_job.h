/* SPDX-License-Identifier: Apache-2.0 */
/* A job file as it was at submission: Slurm keeps a batch script, and the job file must not change either while the job waits. The copy's
 * name is the digest of its text, so that equal files share one, in the folder "submitted" of $HSPMD_CONTACTS or ~/.hspmd. A copy that no
 * submission and no start of a job has used for HSPMD_JOB_KEPT_DAYS is removed. */
#ifndef HSPMD_FORMAT_KEPT_JOB_H
#define HSPMD_FORMAT_KEPT_JOB_H

#include <stdbool.h>

#include "common/format/job.h"

#define HSPMD_JOB_KEPT_DAYS 90

struct hspmd_kept_job {
	char digest[17]; /* FNV-1a, 64 bits: finds changes, proves nothing */
	char *copy;      /* path; NULL: it could not be written */
};

/* Digests the file, writes the copy, mode 0600, and removes old copies. A copy that cannot be written is no error: a change can then be
 * reported, but the job cannot be trained as it was. Returns 0, or -1 and err: the file cannot be read. */
int hspmd_job_keep(const char *path, struct hspmd_kept_job *kept, struct hspmd_error *err);
void hspmd_kept_job_clear(struct hspmd_kept_job *kept);

/* As hspmd_job_read(), of the job file `path` as it was when it had this digest. *changed: it is another one now, or is gone, and what was
 * read is the copy. `copy` may be NULL. NULL and err also if it has changed and the copy cannot be used. */
struct hspmd_job *hspmd_job_read_kept(const char *path, const char *digest, const char *copy, bool *changed, struct hspmd_error *err);

#endif
