"""Reach other addresses: the host's listeners, name servers, cloud metadata, and other kinds of
sockets.
"""

import os
import socket
import struct


def tcp(family, address, port):
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        connection.connect((address, port))
        connection.sendall(b"hello")
        return True


def udp(family, address, port):
    """Send a datagram; only the host can see whether it arrived."""
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.connect((address, port))
        connection.send(b"hello")


def unix(name):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(name)
        return True


def vsock():
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        connection.connect((2, 22))
        return True


def packets():
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        return [name for name in names if not link.bind((name, 0))]


def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(1)
        raw.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0), ("169.254.169.254", 0))
        return raw.recv(100)


def new_interface():
    """Find a process in another network namespace."""
    for pid in (pid for pid in os.listdir("/proc") if pid.isdigit()):
        if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            return f"process {pid} is in another network"
    return None


def reach(scene):
    facts = scene.facts
    for address in facts["addresses"]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        scene.attempt(f"TCP to {address}", tcp, family, address, facts["port"])
        scene.attempt(f"UDP to {address}", udp, family, address, facts["port"])
    for address in ("169.254.169.254", "10.0.2.2", "172.17.0.1", "1.1.1.1"):
        scene.attempt(f"HTTP to {address}", tcp, socket.AF_INET, address, 80)
    scene.attempt("IPv6 to the world", tcp, socket.AF_INET6, "2606:4700:4700::1111", 443)
    scene.attempt("a name", lambda: socket.getaddrinfo("example.com", 80))
    scene.attempt("an abstract Unix socket", unix, "\0" + facts["abstract"])
    scene.attempt("a Unix socket by its path", unix, facts["socket"])
    scene.attempt("the hypervisor", vsock)
    scene.attempt("raw packets", packets)
    scene.attempt("an echo request", ping)
    scene.attempt("another network", new_interface)
    scene.attempt(
        "interfaces",
        lambda: [name for _, name in socket.if_nameindex() if name not in facts["harmless"]],
    )


def meta(scene):
    reach(scene)


def task(scene, inputs):
    if inputs["n"] == 0:
        reach(scene)
    return "unknown"
