/* The commands (one cmd_<name>.c each) in the order of tvgpu --help. */
#ifndef TV_COMMANDS_H
#define TV_COMMANDS_H

#include "cli/options.h"

extern const tv_command tv_command_compare, tv_command_attribute, tv_command_figure, tv_command_sample,
    tv_command_score, tv_command_estimate, tv_command_calibrate, tv_command_schedule, tv_command_synth,
    tv_command_import, tv_command_export, tv_command_generate, tv_command_logits, tv_command_tokenize, tv_command_bench,
    tv_command_info;

#endif
