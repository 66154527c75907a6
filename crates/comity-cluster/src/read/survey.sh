# What a host says of itself: sections "@@ NAME", and "@@! CODE" at the end of one that failed. POSIX sh; it changes nothing.
LC_ALL=C; PATH="$PATH:/usr/sbin:/sbin:/usr/local/bin:/opt/homebrew/bin"; export LC_ALL PATH
p() { echo; echo "@@ $1"; shift; "$@" 2>&1 </dev/null || echo "@@! $?"; }
echo "@@survey 1"
p system uname -srm
p hostname uname -n
p user id -u
p files ulimit -Hn
p memlock ulimit -Hl
p sudo sudo -n true
case $(uname -s) in
Linux)
  p cores nproc
  p memory cat /proc/meminfo
  p boot cat /proc/sys/kernel/random/boot_id
  p space readlink /proc/self/ns/net
  p addr ip -details -json addr
  p route ip -json route show table all
  p route6 ip -json -6 route show table all
  p speed sh -c 'for f in /sys/class/net/*/speed; do n=${f%/speed}; v=$(cat "$f" 2>/dev/null) && echo "${n##*/} $v"; done; true'
  p infiniband sh -c 'cd /sys/class/infiniband 2>/dev/null || exit 0; for d in *; do [ -e "$d" ] || continue
    for p in "$d"/ports/*; do echo "$d $(ls "$d/device/net" 2>/dev/null | head -n 1) ; $(cat "$p/state")"; done; done; true'
  p shm df -kP /dev/shm
  p yama sh -c 'cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null; true'
  p mptcp sh -c 'cat /proc/sys/net/mptcp/enabled 2>/dev/null; ip mptcp limits; ip mptcp endpoint show; true'
  p gpu sh -c 'command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L; true'
  ;;
Darwin)
  p cores sysctl -n hw.ncpu
  p memory sysctl -n hw.memsize
  p boot sysctl -n kern.bootsessionuuid
  p chip sysctl -n machdep.cpu.brand_string
  p thunderbolt system_profiler SPThunderboltDataType -json
  p ports networksetup -listallhardwareports
  p ifconfig ifconfig -a
  p netstat netstat -rn
  p rdma_ctl rdma_ctl status
  p ibv_devices ibv_devices
  ;;
esac
echo; echo "@@ end"
