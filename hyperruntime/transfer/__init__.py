"""Copy file trees between the host and a container as untrusted tar streams."""
