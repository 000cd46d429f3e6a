#!/bin/bash
cat > /home/user/counter/ctl <<'END'
#!/bin/bash
home=/home/user/counter
pidfile=$home/counter.pid

running() {
    [ -f "$pidfile" ] && grep -q counter.py "/proc/$(cat "$pidfile")/cmdline" 2>/dev/null
}

answers() {
    python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])' "$home/counter.sock" 2>/dev/null
}

case $1 in
    start)
        running && exit 1
        rm -f "$home/counter.sock"
        setsid python3 "$home/counter.py" </dev/null >/dev/null 2>&1 &
        echo $! > "$pidfile"
        until answers; do sleep 0.05; done
        ;;
    stop)
        running || exit 1
        number=$(cat "$pidfile")
        kill "$number"
        while running; do sleep 0.05; done
        rm -f "$pidfile"
        ;;
    status) if running; then echo running; else echo stopped; fi ;;
    *) echo "usage: ctl start|stop|status" >&2; exit 2 ;;
esac
END
chmod 755 /home/user/counter/ctl
