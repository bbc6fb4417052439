-- SPDX-License-Identifier: Apache-2.0
-- job_submit.lua for sites with hspmd (JobSubmitPlugins=lua; its place is next to slurm.conf). It does for elastic jobs what the plugin in
-- sbatch cannot do: it sends them to a partition whose jobs Slurm does not preempt, so that hspmdctld has the time to take only the nodes
-- that are needed, and makes Slurm requeue them if their first node is lost. Change the names below to those of your partitions.

-- Partition that elastic jobs go to instead of another over the same nodes; "" where a job may go: it stays.
local elastic_partition = { normal = "elastic", [""] = "elastic" }

-- The job file that the plugin stores with a job that has --hspmd.
local function job_file(job)
	local n = job.spank_job_env_size or 0
	for i = 0, n - 1 do
		local entry = job.spank_job_env[i]
		local file = entry and entry:match("^HSPMD_JOB=(.+)$") or entry and entry:match("^SPANK_HSPMD_JOB=(.+)$")
		if file then
			return file
		end
	end
	return nil
end

function slurm_job_submit(job, partitions, uid)
	local file = job_file(job)
	if not file then
		return slurm.SUCCESS
	end
	-- A job that names no partition has slurm.NO_VAL-like nil here.
	local to = elastic_partition[job.partition or ""]
	if to and partitions[to] then
		job.partition = to
	end
	job.requeue = 1
	slurm.log_info("hspmd: job of user %d with %s goes to partition %s", uid, file, tostring(job.partition))
	return slurm.SUCCESS
end

function slurm_job_modify(job, current, partitions, uid)
	return slurm.SUCCESS
end

return slurm.SUCCESS
