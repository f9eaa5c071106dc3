#include "c/explanation_json.h"

#include "checks/json_writer.h"

namespace kvblocks::c {
namespace {

void Write(const std::optional<Absence>& absence, JsonWriter& json) {
  if (!absence) return;
  json.Key("absence").BeginObject().Key("reason").Value(MissReasonName(absence->reason));
  if (absence->num_blocks_since) json.Key("num_blocks_since").Value(*absence->num_blocks_since);
  json.EndObject();
}

}  // namespace

std::string ExplanationJson(const LookupExplanation& explanation) {
  JsonWriter json;
  json.BeginObject();
  json.Key("num_tokens").Value(explanation.num_tokens);
  json.Key("num_hit_tokens").Value(explanation.num_hit_tokens);
  json.Key("hit_alignment").Value(explanation.hit_alignment);
  json.Key("missed").BeginArray();
  for (const MissedRun& run : explanation.missed) {
    json.BeginObject();
    json.Key("reason").Value(MissReasonName(run.reason));
    json.Key("first_token").Value(run.first_token);
    json.Key("num_tokens").Value(run.num_tokens);
    if (run.group >= 0) json.Key("group").Value(int64_t{run.group});
    if (run.block >= 0) json.Key("block").Value(run.block);
    Write(run.absence, json);
    json.EndObject();
  }
  json.EndArray();
  json.Key("groups").BeginArray();
  for (const GroupReach& group : explanation.groups) {
    json.BeginObject();
    json.Key("group").Value(int64_t{group.group});
    json.Key("kind").Value(group.kind);
    json.Key("num_hit_tokens").Value(group.num_hit_tokens);
    if (group.stop_block) json.Key("stop_block").Value(*group.stop_block);
    Write(group.absence, json);
    json.EndObject();
  }
  json.EndArray();
  json.Key("has_history").Value(explanation.has_history);
  if (explanation.num_removals_remembered) {
    json.Key("num_removals_remembered").Value(*explanation.num_removals_remembered);
  }
  if (explanation.may_not_be_kept) json.Key("may_not_be_kept").Value(true);
  json.EndObject();
  return json.text();
}

}  // namespace kvblocks::c
