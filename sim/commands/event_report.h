// What kvsim events prints of streams: its report as text, and with --json everything as JSON, one
// object per line. docs/events.md describes the JSON.

#ifndef KVBLOCKS_SIM_COMMANDS_EVENT_REPORT_H_
#define KVBLOCKS_SIM_COMMANDS_EVENT_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvblocks/kv_events.h"
#include "sim/report/text_page.h"

namespace kvblocks::sim {

// What is known of a stream beside its content.
struct EventStream {
  std::string name;
  int64_t num_replayed = 0;
  int64_t num_duplicates = 0;
  int64_t num_lost = 0;
  int64_t num_losses = 0;
  int64_t num_restarts = 0;
  int64_t num_undecodable = 0;
  int64_t first_sequence = -1;
  int64_t last_sequence = -1;
};

// A text from the wire, fit for a terminal.
std::string Harmless(const std::string& text);
// One event in words.
std::string InWords(const KvEvent& event);
void AddStreamReport(const EventStream& stream, const events::StreamCheck::Totals& totals,
                     const events::BlockIndex::Holder& holder, TextPage& page);

// Each ends with a line end.
std::string BatchAsJson(const EventStream& stream, int64_t sequence, bool is_replayed,
                        const events::EventBatch& batch);
std::string LossAsJson(const EventStream& stream, int64_t num_batches, std::string_view error);
std::string RestartAsJson(const EventStream& stream);
std::string StreamReportAsJson(const EventStream& stream, const events::StreamCheck::Totals& totals,
                               const events::BlockIndex::Holder& holder);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_EVENT_REPORT_H_
