"""Limits of what clients of a service of containers may ask for."""

from __future__ import annotations

from fnmatch import fnmatchcase

import attrs

from hyperruntime.images.recipes import image_reference
from hyperruntime.network.egress import Egress, Network
from hyperruntime.remote.service_errors import NotAllowedError
from hyperruntime.serve.models import NewContainer
from hyperruntime.settings.image_names import is_image_name
from hyperruntime.spec import ContainerSpec, Limits


@attrs.frozen(kw_only=True)
class ContainerRules:
    """The rules of a service. Host paths, GPUs and privileges are never given to its containers.

    Attributes:
        most_containers: how many containers may be alive at once.
        most_processes: how many background processes a container may have, ended ones included
            until they are removed.
        idle_s: seconds after which an unused container is ended; None means never.
        images: patterns of allowed references, as of a shell; none means every image of this
            machine.
        networks: allowed network access.
        egress: the servers that a container may list as its network; None means none.
        may_pull: whether images may be pulled.
        limits: of each container; a request may ask for less.
    """

    most_containers: int = 64
    most_processes: int = 64
    idle_s: float | None = 1800.0
    images: tuple[str, ...] = ()
    networks: tuple[str, ...] = ("none",)
    egress: Egress | None = None
    may_pull: bool = False
    limits: Limits = attrs.field(factory=Limits)

    def spec_of(self, new: NewContainer) -> ContainerSpec:
        """Return the spec of a container that a client asks for.

        Raises:
            SpecError: a field is invalid.
            NotAllowedError: the rules forbid it.
        """
        image = image_reference(new.image)
        if not is_image_name(image):
            raise NotAllowedError(
                f"image {image!r} is not allowed here; give the name of an image, not a path or "
                "a transport"
            )
        if self.images and not any(fnmatchcase(image, image_reference(one)) for one in self.images):
            raise NotAllowedError(
                f"image {image!r} is not allowed here; allowed: {', '.join(self.images)} "
                "(--image of the service)"
            )
        self._check_network(new.network)
        if new.pull != "never" and not self.may_pull:
            raise NotAllowedError(
                f"image {image!r} is not pulled here; pull it, or start the service with --pull"
            )
        return ContainerSpec(
            image=image,
            env=new.env,
            workdir=new.workdir,
            user=new.user,
            network=new.network,
            pull=new.pull,
            read_only_rootfs=new.read_only_rootfs,
            limits=self._limits_of(new),
        )

    def _check_network(self, network: Network | Egress) -> None:
        if isinstance(network, Egress):
            if self.egress is None or not self.egress.covers(network):
                allowed = ", ".join(self.egress.allow) if self.egress else "no server"
                raise NotAllowedError(
                    f"the list {', '.join(network.allow)} is not allowed here; allowed: {allowed} "
                    "(--allow of the service)"
                )
        elif network not in self.networks:
            raise NotAllowedError(
                f"network {network!r} is not allowed here; allowed: {', '.join(self.networks)} "
                "(--network of the service)"
            )

    def _limits_of(self, new: NewContainer) -> Limits:
        asked = {
            name: getattr(new, name) for name in (field.name for field in attrs.fields(Limits))
        }
        for name, value in asked.items():
            most = getattr(self.limits, name)
            if value is not None and most is not None and value > most:
                raise NotAllowedError(
                    f"{name}={value} is above the limit of this service, {most}; ask for less"
                )
        return attrs.evolve(
            self.limits, **{name: value for name, value in asked.items() if value is not None}
        )
