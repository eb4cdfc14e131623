package queue

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// FingerprintOf gives a value that tells a queue directory from a copy of it: a restored backup or a
// cloned machine must not continue with sequence numbers that the original has used. A difference
// without a reason costs only a new boot id.
func FingerprintOf(dir string) (Fingerprint, error) {
	var f Fingerprint
	st, err := os.Stat(dir)
	if err != nil {
		return f, fmt.Errorf("fingerprint of %s: %w", dir, err)
	}
	h := sha256.New()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		fmt.Fprintf(h, "inode %d\n", sys.Ino)
	}
	machine, _ := os.ReadFile("/etc/machine-id") // absent in many containers
	host, _ := os.Hostname()
	fmt.Fprintf(h, "machine %s\nhost %s\n", strings.TrimSpace(string(machine)), host)
	copy(f[:], h.Sum(nil))
	return f, nil
}
