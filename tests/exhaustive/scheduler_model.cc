#include "tests/exhaustive/scheduler_model.h"

#include <algorithm>

#include "kvblocks/check.h"

namespace kvblocks::exhaustive {

SchedulerModel::SchedulerModel(const SchedulerSetting& setting)
    : setting_(&setting),
      manager_(KvCacheManager::Create(setting.config, setting.options).value()),
      jobs_(setting.jobs.size()) {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    jobs_[i].request = manager_
                           ->NewRequest({.id = std::string(1, static_cast<char>('A' + i)),
                                         .content = {.token_ids = setting.jobs[i].prompt}})
                           .value();
  }
}

bool SchedulerModel::Arrive(size_t job) {
  if (jobs_[job].arrived) return false;
  jobs_[job].arrived = true;
  waiting_.push_back(job);
  return true;
}

bool SchedulerModel::Stop(size_t index) {
  if (index >= running_.size()) return false;
  Finish(running_[index]);
  return true;
}

void SchedulerModel::Finish(size_t job) {
  const absl::Status status = manager_->Free(*jobs_[job].request);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
  jobs_[job].finished = true;
  ++num_finished_;
  running_.erase(std::find(running_.begin(), running_.end(), job));
}

bool SchedulerModel::Allocate(size_t job, int64_t budget) {
  Request& request = *jobs_[job].request;
  const int64_t num_new = std::min(budget, request.num_tokens() - request.num_computed_tokens());
  const auto result =
      manager_->AllocateSlots(request, {.num_new_tokens = num_new, .has_scheduled_requests = true});
  KVBLOCKS_CHECK(result.ok(), result.status().ToString());
  if (result->has_value()) Advance(job, num_new);
  return result->has_value();
}

bool SchedulerModel::Admit(size_t job, int64_t budget) {
  Request& request = *jobs_[job].request;
  const auto hits = manager_->GetComputedBlocks(request);
  KVBLOCKS_CHECK(hits.ok(), hits.status().ToString());
  request.set_shared_prefix_boundary(hits->shared_prefix_boundary());
  const int64_t num_new = std::min(budget, request.num_tokens() - hits->num_tokens());
  const auto result =
      manager_->AllocateSlots(request, {.num_new_tokens = num_new,
                                        .computed_blocks = &*hits,
                                        .full_sequence_must_fit = setting_->full_sequence_must_fit,
                                        .has_scheduled_requests = !running_.empty()});
  KVBLOCKS_CHECK(result.ok(), result.status().ToString());
  if (!result->has_value()) return false;
  request.set_num_computed_tokens(hits->num_tokens());
  request.set_status(RequestStatus::kRunning);
  running_.push_back(job);
  Advance(job, num_new);
  return true;
}

void SchedulerModel::Advance(size_t job, int64_t num_new) {
  Request& request = *jobs_[job].request;
  request.set_num_computed_tokens(request.num_computed_tokens() + num_new);
  if (request.num_computed_tokens() < request.num_tokens()) return;
  const int64_t made = request.num_tokens() - request.num_prompt_tokens();
  if (made == setting_->jobs[job].num_output_tokens) return Finish(job);
  const absl::Status status =
      request.AppendOutputTokens({1000 + static_cast<TokenId>(request.num_tokens())});
  KVBLOCKS_CHECK(status.ok(), status.ToString());
}

void SchedulerModel::Step(int64_t budget) {
  bool preempted = false;
  const std::vector<size_t> scheduled = running_;
  for (size_t job : scheduled) {
    const auto is_running = [&] {
      return std::find(running_.begin(), running_.end(), job) != running_.end();
    };
    while (is_running() && !Allocate(job, budget)) {
      const size_t victim = running_.back();
      const absl::Status status = manager_->Free(*jobs_[victim].request);
      KVBLOCKS_CHECK(status.ok(), status.ToString());
      jobs_[victim].request->MarkPreempted();
      running_.pop_back();
      waiting_.push_front(victim);
      preempted = true;
    }
  }
  if (preempted) return;
  while (!waiting_.empty() && Admit(waiting_.front(), budget)) waiting_.pop_front();
}

std::string SchedulerModel::StateKey() const {
  std::string key;
  const BlockPool& pool = manager_->pool();
  std::vector<char> names(static_cast<size_t>(pool.num_blocks()), 0);
  std::vector<BlockId> mentioned;
  const auto put = [&](int64_t value) { key.push_back(static_cast<char>(value)); };
  const auto put_block = [&](BlockId id) {
    char& name = names[static_cast<size_t>(id)];
    if (id != kNullBlockId && name == 0) {
      mentioned.push_back(id);
      name = static_cast<char>(mentioned.size());
    }
    key.push_back(name);
  };
  for (const State& job : jobs_) {
    put(job.arrived + 2 * job.finished);
    put(job.request->num_tokens());
    put(job.request->num_computed_tokens());
    put(job.request->shared_prefix_boundary());
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const auto table = manager_->GetBlocks(*job.request, g);
      put(static_cast<int64_t>(table.size()));
      for (BlockId id : table) put_block(id);
    }
  }
  put(static_cast<int64_t>(waiting_.size()));
  for (size_t job : waiting_) put(static_cast<int64_t>(job));
  for (size_t job : running_) put(static_cast<int64_t>(job));
  for (BlockId id : pool.free_queue().Walk()) put_block(id);
  for (BlockId id : mentioned) {
    put(pool.block(id).key_group);
    if (!pool.block(id).has_key()) continue;
    key += pool.hash(id).ToHex().substr(0, 16);
    const auto holders = pool.table().FindAll(pool.hash(id), pool.block(id).key_group);
    put(std::find(holders.begin(), holders.end(), id) - holders.begin());
  }
  return key;
}

}  // namespace kvblocks::exhaustive
