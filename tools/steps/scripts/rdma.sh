# RDMA without a device for it: rdma-core's own programs, and Comity's links, on the software device.
"$TOOLBOX" softverbs "$WORK/lib"
soft() { LD_LIBRARY_PATH=$WORK/lib SOFTVERBS_DEVICES=left=127.0.0.21,right=127.0.0.22 timeout 30 "$@"; }

says left soft ibv_devices
grep -q right "$WORK/said"
says "hca_id:" soft ibv_devinfo -v
for words in left right "PORT_ACTIVE (4)" "::ffff:127.0.0.22"; do grep -qF "$words" "$WORK/said"; done

# exchange MODE PROGRAM FLAGS...: the port can be taken between the look and its use, by the software device too.
exchange() {
    export SOFTVERBS_MODE=$1
    program=$2
    shift 2
    for try in 1 2 3; do
        port=$(free_port)
        soft "$program" -d left -p "$port" "$@" > "$WORK/server" 2>&1 &
        server=$! tries=0
        # The server is not listening at once, and only its client may try.
        until soft "$program" -d right -p "$port" "$@" 127.0.0.1 > "$WORK/client" 2>&1; do
            tries=$((tries + 1))
            if [ $tries -gt 200 ] || ! grep -q "Couldn't connect" "$WORK/client"; then break; fi
            sleep 0.05
        done
        if wait $server && grep -q "iters in" "$WORK/client"; then
            exchanges=$((exchanges + 1))
            echo "right: $program $* ($SOFTVERBS_MODE): $(tail -n 1 "$WORK/server")"
            return
        fi
        grep -q "Couldn't listen to port" "$WORK/server" || break
    done
    cat "$WORK/server" "$WORK/client"
    exit 1
}
exchanges=0
# Addressed by LID and by GID, polling and sleeping, small, large and checked byte by byte.
for program in ibv_rc_pingpong ibv_uc_pingpong; do
    exchange ib $program -n 300
    exchange ib $program -g 1 -n 300
    exchange ib $program -e
    exchange ib $program -c
    exchange ib $program -s 1048576 -n 40 -c
done
# One frame of 4 KiB, and an odd number of them.
exchange apple ibv_uc_pingpong -g 1 -n 300
exchange apple ibv_uc_pingpong -g 1 -s 12288 -r 300 -n 100 -c
fails "Couldn't create QP" soft ibv_rc_pingpong -g 1
unset SOFTVERBS_MODE

# The cases of conform.c, compiled against the real header, end as over the kernel's Soft-RoCE (the step `guest`).
cases=tools/steps/src/test/rdma/conform
cc -O1 -Wall -Werror -o "$WORK/conform" $cases.c -libverbs
soft "$WORK/conform" left right > "$WORK/said" 2>&1 || { cat "$WORK/said"; exit 1; }
sed 's/[[:space:]]*$//; /^$/d' $cases.txt > "$WORK/wanted"
sed 's/[[:space:]]*$//; /^$/d' "$WORK/said" | diff "$WORK/wanted" -

echo "=> $exchanges ping-pongs by rdma-core's programs"
# Comity's own links, and jobs over them.
export COMITY_VERBS="$WORK/lib/libibverbs.so.1" SOFTVERBS_DEVICES="soft=127.0.0.1*3"
cargo nextest run --workspace --profile gate --run-ignored all --test-threads 2 $QUARTER -E 'kind(lib) & test(/^verbs::/) | binary(rdma)'
