"""What a run will measure and cost, told from the configuration alone: no weight is read.

The public function is `hf_ess.plan`, in `hf_ess.planning.planner`.
"""
