"""Take back what containers wrote on the host: as its owner's own files, and with no special bits."""
