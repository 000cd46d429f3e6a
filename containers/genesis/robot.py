"""Robots of the kind Go2 in the simulator Genesis, inside a container; needs nothing of this
project. As a program it lets the simulator compile what it needs, while the image is built.

Each robot stands on a plane in a world of its own. An action moves its joints away from a pose of
rest, and a spring and a damper in each joint follow it. The robot's description is a part of the
package ``genesis-world``.
"""

from __future__ import annotations

import genesis
import torch

STEPS_PER_SECOND = 50
OBSERVATIONS = 45
ACTIONS = 12
_LEGS = ("FR", "FL", "RR", "RL")
_REST = {"hip": (0.0, 0.0), "thigh": (0.8, 1.0), "calf": (-1.5, -1.5)}  # front and rear legs
_STIFFNESS = 20.0
_DAMPING = 0.5
_ACTION_SCALE = 0.25
_MOST = 10.0
_START_HEIGHT = 0.34
_NOISE = 0.1
# A robot fell if its trunk is tilted by more than 60 degrees, or touches the ground.
_UPRIGHT = -0.5
_LOWEST = 0.15


class Robots:
    """Robots that move at once; each value is a tensor with a row for each of them.

    Attributes:
        count: how many robots.
        device: where the tensors are.
        velocity: of the trunk, in metres per second; x is to the front, as the robot sees it.
        spin: of the trunk, in radians per second, as the robot sees it.
        gravity: the direction of gravity, as the robot sees it; (0, 0, -1) is upright.
        place: of the trunk, in metres, in the world; the third one is its height.
        joints: angles of the joints, less those at rest.
        joint_speeds: speeds of the joints.
        action: what the policy asked for in this step.
        last_action: what it asked for in the step before.
        fell: whether a robot fell in this step.
        steps: how many steps a robot made since it was put down.
    """

    def __init__(self, count: int, seed: int, *, gpu: bool) -> None:
        """Build the worlds.

        Args:
            count: how many robots.
            seed: of the poses in which they are put down.
            gpu: whether the simulation runs on a GPU.
        """
        backend = genesis.gpu if gpu else genesis.cpu
        genesis.init(backend=backend, seed=seed, logging_level="error")
        self.count = count
        self.device = genesis.device
        self._scene = genesis.Scene(
            sim_options=genesis.options.SimOptions(dt=1 / STEPS_PER_SECOND, substeps=2),
            rigid_options=genesis.options.RigidOptions(
                enable_self_collision=False, tolerance=1e-5, max_collision_pairs=20
            ),
            show_viewer=False,
        )
        self._scene.add_entity(genesis.morphs.URDF(file="urdf/plane/plane.urdf", fixed=True))
        self._robot = self._scene.add_entity(
            genesis.morphs.URDF(file="urdf/go2/urdf/go2.urdf", pos=(0, 0, _START_HEIGHT))
        )
        self._scene.build(n_envs=count)
        names = [f"{leg}_{part}_joint" for leg in _LEGS for part in _REST]
        self._motors = [self._robot.get_joint(name).dofs_idx_local[0] for name in names]
        self._robot.set_dofs_kp([_STIFFNESS] * ACTIONS, self._motors)
        self._robot.set_dofs_kv([_DAMPING] * ACTIONS, self._motors)
        rest = [_REST[part][leg.startswith("R")] for leg in _LEGS for part in _REST]
        self._rest = torch.tensor(rest, device=self.device)
        self._down = torch.tensor([0.0, 0.0, -1.0], device=self.device).repeat(count, 1)
        self.steps = torch.zeros(count, dtype=torch.long, device=self.device)
        self.action = torch.zeros(count, ACTIONS, device=self.device)
        self.last_action = self.action.clone()
        self.put_down(torch.ones(count, dtype=torch.bool, device=self.device))

    def put_down(self, which: torch.Tensor) -> None:
        """Put robots down at their start, in a pose near to that of rest."""
        rows = which.nonzero().flatten()
        if len(rows):
            noise = 2 * torch.rand(len(rows), ACTIONS, device=self.device) - 1
            joints = self._rest + _NOISE * noise
            start = torch.tensor([0.0, 0.0, _START_HEIGHT], device=self.device)
            upright = torch.tensor([1.0, 0.0, 0.0, 0.0], device=self.device)
            self._robot.set_pos(start.repeat(len(rows), 1), envs_idx=rows)
            self._robot.set_quat(upright.repeat(len(rows), 1), envs_idx=rows)
            self._robot.set_dofs_position(joints, self._motors, envs_idx=rows)
            self._robot.zero_all_dofs_velocity(rows)
            self.action[rows] = 0
            self.steps[rows] = 0
        self._look()

    def move(self, actions: torch.Tensor) -> None:
        """Let a fiftieth of a second pass."""
        self.last_action = self.action
        self.action = actions.nan_to_num().clamp(-_MOST, _MOST)
        goals = self._rest + _ACTION_SCALE * self.action
        self._robot.control_dofs_position(goals, self._motors)
        self._scene.step()
        self.steps += 1
        self._look()

    def observations(self) -> torch.Tensor:
        """Return what a policy sees."""
        parts = (
            self.velocity, 0.25 * self.spin, self.gravity, self.joints, 0.05 * self.joint_speeds,
            self.action,
        )  # fmt: skip
        return torch.cat(parts, dim=1).nan_to_num().clamp(-100, 100)

    def _look(self) -> None:
        around = _conjugate(self._robot.get_quat())
        self.place = self._robot.get_pos()
        self.velocity = _turn(self._robot.get_vel(), around)
        self.spin = _turn(self._robot.get_ang(), around)
        self.gravity = _turn(self._down, around)
        self.joints = self._robot.get_dofs_position(self._motors) - self._rest
        self.joint_speeds = self._robot.get_dofs_velocity(self._motors)
        # comparisons with NaN are false: a world that broke is a fall
        upright = (self.gravity[:, 2] < _UPRIGHT) & (self.place[:, 2] > _LOWEST)
        self.fell = ~upright


def _conjugate(quaternions: torch.Tensor) -> torch.Tensor:
    return quaternions * torch.tensor([1.0, -1.0, -1.0, -1.0], device=quaternions.device)


def _turn(vectors: torch.Tensor, quaternions: torch.Tensor) -> torch.Tensor:
    """Return vectors turned by unit quaternions, whose first number is the real part."""
    real, axis = quaternions[:, :1], quaternions[:, 1:]
    across = 2 * torch.cross(axis, vectors, dim=1)
    return vectors + real * across + torch.cross(axis, across, dim=1)


if __name__ == "__main__":
    some = Robots(2, 0, gpu=False)
    some.move(some.action)
    some.put_down(~some.fell)
