/* SPDX-License-Identifier: Apache-2.0 */
/* torchrun's command line (PyTorch 2.15: torchrun, python -m torch.distributed.run, python -m torch.distributed.launch), read as the
 * command of one rank: `torchrun [options] x.py ARGUMENTS` is `python -u x.py ARGUMENTS`. */
#ifndef HSPMD_FORMAT_TORCHRUN_H
#define HSPMD_FORMAT_TORCHRUN_H

#include <stddef.h>

#include "common/error.h"

/* Rewrites argv, a malloc'd NULL-terminated list of malloc'd strings, if it begins with torchrun; returns 1 then. Writes the names of the
 * options that are not used, because sizes and rendezvous are hspmd's, into `ignored`, with spaces between; "": none. Returns 0 if argv is
 * another command, which stays as it is; -1 and err: torchrun would not understand it either, or out of memory (argv is unchanged). */
int hspmd_torchrun_read(char ***argv, int *argc, char *ignored, size_t size, struct hspmd_error *err);

#endif
