// libcomity's own header.
#include "../../../../crates/comity-c/include/comity.h"
