"""The two shell programs that run inside a container; POSIX sh for dash, bash and busybox ash."""
