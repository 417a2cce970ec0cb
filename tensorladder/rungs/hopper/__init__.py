"""Hopper rungs: TMA, mbarriers and warp specialisation (sm_90 up)."""
