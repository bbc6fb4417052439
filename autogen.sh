#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make ./configure from configure.ac. Needs autoconf, automake, libtool, pkg-config.
# Before that, list the files of the folders to which new files are added without naming them anywhere; `autogen.sh --lists` does only this,
# and make calls it if such a folder has changed.
set -e
cd "$(dirname "$0")"

# keep_if_changed LIST: its new text replaces it only if it differs, so that its date says when it changed.
keep_if_changed() {
	if cmp -s "$1.$$" "$1"; then rm "$1.$$"; else mv "$1.$$" "$1"; fi
}
# write_list VARIABLE FOLDER AM PATTERN...: lists the files of a folder that its own *.am does not name.
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
	keep_if_changed "$list"
}
# The list of optimizers, each of which is one header. optimizer.h and rules.h include it.
write_optimizers() {
	list=build-aux/optimizer_list.h
	names=$(cd common/optimizer && printf '%s\n' [a-z]*.h | sed -n '/^optimizer\.h$/d; /^rules\.h$/d; s/\.h$//p' | LC_ALL=C sort)
	{
		echo '/* Made by autogen.sh: files of common/optimizer. */'
		echo '#ifdef HSPMD_OPTIMIZER_RULES'
		for name in $names; do echo "#include \"common/optimizer/$name.h\""; done
		printf '#else\n#define HSPMD_OPTIMIZERS(X)'
		for name in $names; do printf ' \\\n\tX(%s, %s)' "$(echo "$name" | tr '[:lower:]' '[:upper:]')" "$name"; done
		printf '\n#endif\n'
	} >"$list.$$"
	keep_if_changed "$list"
}
# The makefiles that devices bring. That of the CPU device is device.am.
write_devices() {
	list=build-aux/DEVICES.am
	{
		echo '# Made by autogen.sh: makefiles in folders of runtime/device.'
		for am in runtime/device/*/*.am; do echo "include $am"; done
	} >"$list.$$"
	keep_if_changed "$list"
}
mkdir -p build-aux
write_optimizers
write_devices
write_list OPTIMIZER_FILES common/optimizer common/common.am '*.[ch]'
write_list MODEL_FILES runtime/model runtime/model/model.am '*.[ch]'
write_list OP_FILES runtime/op runtime/op/op.am '*.[ch]'
write_list CPU_KERNELS runtime/device/cpu runtime/device/device.am '*.[ch]'
write_list CUDA_KERNEL_FILES runtime/device/cuda runtime/device/cuda/cuda.am '*.cu'
[ "${1-}" != --lists ] || exit 0

for tool in autoreconf automake libtoolize pkg-config; do
	command -v "$tool" >/dev/null || { echo "autogen.sh: $tool is missing; install autoconf, automake, libtool and pkg-config" >&2; exit 1; }
done
exec autoreconf --install --force --warnings=all,no-obsolete,no-portability
