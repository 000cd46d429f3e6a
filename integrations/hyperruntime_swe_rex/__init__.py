"""A deployment of SWE-ReX: ``Deployment(image=...)`` where its own is ``DockerDeployment(image=...)``."""

from hyperruntime_swe_rex.deployment import Deployment, DeploymentConfig
from hyperruntime_swe_rex.runtime import Runtime

__all__ = ["Deployment", "DeploymentConfig", "Runtime"]
