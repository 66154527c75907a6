# Messages that an ordinary user's ranks read in each other's memory, under Yama's scopes 0 to 2. Root would pass all of them.

SCOPE=/proc/sys/kernel/yama/ptrace_scope

# as_user COMMAND...
as_user() {
    setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
}

# job SETTING MORE: two ranks, which say whether messages were read so.
job() {
    as_user env COMITY_LINKS=shm COMITY_PULL=65536 "$1" comity launch -n 2 -- comity bench all_reduce --sizes 1M,2M $2
}

# expect SCOPE yes|no SETTING: right results, and read so or not.
expect() {
    echo "$1" > $SCOPE
    job "$3" "--iters 10" > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    read=no
    grep -q 'where they lay in the memory of other ranks' /tmp/said && read=yes
    as_user env COMITY_PULL=65536 comity info | grep -o 'Yama[^)]*' > /tmp/info
    echo "scope $1, $3: read $read; $(cat /tmp/info)"
    [ $read = "$2" ] || { cat /tmp/said; exit 1; }
}

# stranger SETTING yes|no: whether a process of the same user that the launcher did not start may open a rank's memory.
stranger() {
    echo 1 > $SCOPE
    : > /tmp/said
    job "$1" "--budget 20" > /tmp/said 2>&1 &
    until grep -q '^\[0\] *1048576' /tmp/said; do sleep 0.2; done
    rank=$(grep -l COMITY_RANK=1 /proc/[0-9]*/environ | cut -d / -f 3)
    [ -e "/proc/$rank/mem" ] || { echo "rank 1 is not one process: [$rank]"; exit 1; }
    may=no
    as_user sh -c ": < /proc/$rank/mem" 2> /tmp/why && may=yes
    echo "scope 1, $1: a stranger may read: $may"
    # The launcher, not the shell that runs the function.
    kill "$(sed 's/.*) . \([0-9]*\) .*/\1/' "/proc/$rank/stat")"
    wait
    [ ! -e "/proc/$rank" ] || { echo "rank 1 outlived its launcher"; exit 1; }
    [ $may = "$2" ] || { cat /tmp/why /tmp/said; exit 1; }
}

# unasked SCOPE yes|no SETTING: the same of an exchange, where nobody has said how messages are to travel.
unasked() {
    echo "$1" > $SCOPE
    as_user env COMITY_LINKS=shm "$3" comity launch -n 2 -- comity bench all_gather --sizes 1M,2M --iters 10 > /tmp/said 2>&1 \
        || { cat /tmp/said; exit 1; }
    read=no
    grep -q 'where they lay in the memory of other ranks' /tmp/said && read=yes
    echo "scope $1, unasked, $3: read $read; $(as_user env "$3" comity info | grep -o 'long messages [^;]*')"
    [ $read = "$2" ] || { cat /tmp/said; exit 1; }
}

unasked 0 yes COMITY_TIMEOUT=60
unasked 1 no COMITY_TIMEOUT=60
unasked 1 yes COMITY_PTRACER=ancestor
expect 0 yes COMITY_PTRACER=ancestor
expect 1 yes COMITY_PTRACER=ancestor
expect 1 no COMITY_PTRACER=keep
expect 2 no COMITY_PTRACER=ancestor
stranger COMITY_PTRACER=ancestor no
stranger COMITY_PTRACER=any yes
echo 1 > $SCOPE
