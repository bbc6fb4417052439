#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make ./configure from configure.ac. Needs autoconf, automake, libtool, pkg-config.
# Before that, list the files of the folders to which new files are added without naming them anywhere; `autogen.sh --lists` does only this,
# and make calls it if such a folder has changed. A list contains what the folder's own *.am does not name.
set -e
cd "$(dirname "$0")"

# write_list VARIABLE FOLDER AM PATTERN...: the list is written only if it differs, so that its date says when it changed.
write_list() {
	variable=$1 folder=$2 am=$3
	shift 3
	list=build-aux/$variable.am
	{
		printf '# Made by autogen.sh: files of %s.\n%s =' "$folder" "$variable"
		# shellcheck disable=SC2086 # a pattern of files
		for pattern; do printf '%s\n' "$folder"/$pattern; done | LC_ALL=C sort | while read -r file; do
			grep -qw -e "$file" "$am" || printf ' \\\n\t%s' "$file"
		done
		echo
	} >"$list.$$"
	if cmp -s "$list.$$" "$list"; then rm "$list.$$"; else mv "$list.$$" "$list"; fi
}
mkdir -p build-aux
write_list OP_FILES runtime/op runtime/op/op.am '*.[ch]'
write_list CPU_KERNELS runtime/device/cpu runtime/device/device.am '*.[ch]'
write_list CUDA_KERNEL_FILES runtime/device/cuda runtime/device/cuda/cuda.am '*.cu'
[ "${1-}" != --lists ] || exit 0

for tool in autoreconf automake libtoolize pkg-config; do
	command -v "$tool" >/dev/null || { echo "autogen.sh: $tool is missing; install autoconf, automake, libtool and pkg-config" >&2; exit 1; }
done
exec autoreconf --install --force --warnings=all,no-obsolete,no-portability
