// ReportOutput: the options of a command that makes one report, and where the report goes: a table
// or JSON to standard output; JSON, rows and a page to files.
//
//   output.AddFiles(options, {.rows_help = "one row per size", .has_page = true});
//   output.AddTerminal(options, "neither table nor progress");
//   ...
//   absl::Status status = output.Check(FilesOf(config));   // before anything runs
//   return output.Print("curve", report, {.table = ..., .rows = ...});
//
// Always: nothing is written over what is read, no two outputs share a file, and the table gives
// way to what else wants standard output.

#ifndef KVBLOCKS_SIM_COMMANDS_REPORT_OUTPUT_H_
#define KVBLOCKS_SIM_COMMANDS_REPORT_OUTPUT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/output.h"
#include "sim/commands/run_files.h"
#include "sim/report/report_json.h"

namespace kvblocks::sim {

// Writes the page of a report: see HtmlPage.
absl::Status WritePage(const std::string& path, const google::protobuf::Message& report,
                       const PageParts& others = {});

class ReportOutput {
 public:
  // What files can have beside JSON.
  struct Files {
    const char* rows_help = nullptr;  // of --csv; null: there is none
    bool has_page = false;            // --html
  };
  // Of the report, made when they are needed.
  struct Texts {
    std::function<std::string(bool color)> table;
    std::function<std::string()> rows = nullptr;  // null: the command writes --csv itself
    PageParts page_parts = {};  // what --html has beside the report
  };

  // --json alone.
  void AddJson(OptionParser* options);
  // --json, --json-file, and what else there is.
  void AddFiles(OptionParser* options, const Files& files);
  // --quiet, which silences the table, too, where files can have the report; and --color.
  void AddTerminal(OptionParser* options, const std::string& quiet_help);

  // See CheckRunFiles; of the files that the command line names, and of `others`, which
  // configurations name. REQUIRES: AddFiles, and the parse.
  absl::Status Check(const std::vector<RunFile>& others);

  // Writes what is asked for; REQUIRES: checked, if there are files. Says on standard error what
  // failed.
  ExitStatus Print(const std::string& command, const google::protobuf::Message& report,
                   const Texts& texts) const;

  const std::string& csv() const { return csv_; }
  const std::string& html() const { return html_; }
  bool quiet() const { return quiet_; }

 private:
  const OptionParser* options_ = nullptr;
  std::string json_file_, csv_, html_, color_ = "auto";
  bool json_ = false, quiet_ = false, has_files_ = false;
  bool is_stdout_taken_ = false;  // by something else than the table
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPORT_OUTPUT_H_
