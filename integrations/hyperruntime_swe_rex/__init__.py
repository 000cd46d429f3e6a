"""A deployment of SWE-ReX: use ``Deployment(image=...)`` instead of
``DockerDeployment(image=...)``.
"""

from hyperruntime_swe_rex.deployment import Deployment, DeploymentConfig
from hyperruntime_swe_rex.runtime import Runtime

__all__ = ["Deployment", "DeploymentConfig", "Runtime"]
