"""What all seats of a gateway share."""

from __future__ import annotations

import asyncio

from hyperruntime.gateway.config.values import GatewayConfig
from hyperruntime.gateway.log.budget import Meter
from hyperruntime.gateway.log.exchange import LineFile
from hyperruntime.gateway.request.parse_pool import ParsePool
from hyperruntime.gateway.upstream import Sender
from hyperruntime.secrets.redact import Redactor


class Shared:
    """The objects that all seats of a gateway share.

    Attributes:
        config: the gateway's configuration.
        meter: counts the usage of the whole run.
        redactor: removes all keys of the gateway.
        sender: sends requests to the upstreams.
        slots: bounds the requests at the upstreams at once.
        pool: processes that parse large requests and answers.
        log: log of the exchanges, or None.
        record: file that keeps the answers for replay, or None.
    """

    def __init__(self, config: GatewayConfig, meter: Meter) -> None:
        """Load the keys, and open the files.

        Raises:
            GatewayError: a key or a file of recorded exchanges is missing.
            StorageError: a log file cannot be written.
        """
        self.config = config
        self.meter = meter
        self.redactor = Redactor()
        self.sender = Sender(config, self.redactor)
        self.slots = asyncio.Semaphore(config.concurrency)
        self.pool = ParsePool()
        self.log = LineFile(config.log, self.redactor) if config.log else None
        self.record = LineFile(config.record, self.redactor) if config.record else None

    def close(self) -> None:
        """End the processes, and close the files."""
        self.pool.close()
        for file in (self.log, self.record):
            if file is not None:
                file.close()
