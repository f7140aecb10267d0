/* In the place of NCCL's own, where the emulator runs. */
#include "../emu_nccl.h"
