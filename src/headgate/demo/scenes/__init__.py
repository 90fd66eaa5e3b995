"""The demo's scenes, in the order in which they are played."""

from headgate.demo.scenes import agent_dies, failover, favor, flood, healthy, rogue

SCENES = (
    healthy.SCENE,
    flood.SCENE,
    favor.SCENE,
    rogue.SCENE,
    failover.SCENE,
    agent_dies.SCENE,
)

__all__ = ["SCENES"]
