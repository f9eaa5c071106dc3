#include "examples/engine/request_log.h"

#include <utility>

#include "checks/json_writer.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::engine {

void RequestLog::OnRow(const sim::RequestRow& row) {
  if (!row.latency || !row.request->is_completed()) return;
  const auto seconds = [](sim::SimTime time) {
    return static_cast<double>(time) / static_cast<double>(sim::kSecond);
  };
  JsonWriter json;
  json.BeginObject().Key("request_id").Value(row.request->spec.id);
  json.Key("input_toks").Value(row.request->num_prompt);
  json.Key("output_toks").Value(row.progress->num_outputs);
  json.Key("arrival_time").Value(seconds(row.request->arrival));
  json.Key("queued_ts").Value(seconds(row.request->arrival));
  json.Key("scheduled_ts").Value(seconds(row.progress->first_scheduled));
  json.Key("first_token_ts").Value(seconds(row.progress->first_output));
  json.Key("last_token_ts").Value(seconds(row.progress->last_output));
  lines_[row.request->spec.row] = json.EndObject().text() + "\n";
}

std::string RequestLog::Text() const {
  std::string text;
  for (const auto& [row, line] : lines_) text += line;
  return text;
}

}  // namespace kvblocks::engine
