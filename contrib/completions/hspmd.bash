# SPDX-License-Identifier: Apache-2.0
# Completion for bash: commands and options are those that hspmd itself prints.
_hspmd_words() { # COMMAND: its subcommands and options, one per line; without a command: the commands
	if [[ -z ${1-} ]]; then
		hspmd --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p'
	else
		hspmd "$1" --help 2>/dev/null | grep -oE -- '(^|[[:space:]])--[a-z][a-z-]*' | tr -d ' \t'
		hspmd "$1" --help 2>/dev/null | sed -n "s/^\(Usage:\)\{0,1\} *hspmd $1 \([a-z][a-z]*\).*/\2/p"
	fi
}

_hspmd() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=
	((COMP_CWORD < 2)) || command=${COMP_WORDS[1]}
	case $before in
	--cluster | --job | --model | --profile | --plan | --current | --evaluate | --policy | --policies | --output | -o | --trace)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$(_hspmd_words "$command" | sort -u)" -- "$word")
	((${#COMPREPLY[@]} > 0)) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _hspmd hspmd
