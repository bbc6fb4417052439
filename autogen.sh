#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make ./configure from configure.ac. Needs autoconf, automake, libtool, pkg-config.
set -e
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize pkg-config; do
	command -v "$tool" >/dev/null || { echo "autogen.sh: $tool is missing; install autoconf, automake, libtool and pkg-config" >&2; exit 1; }
done
exec autoreconf --install --force --warnings=all,no-obsolete,no-portability
