// Package tlsfile has what TLS takes from files: certificates with their keys, certificate
// authorities, and the settings of a TLS client. Files are read again when they change,
// so that renewing a certificate or a token needs no restart.
package tlsfile

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// checkEvery bounds how often files are checked for a change.
const checkEvery = 5 * time.Second

// refreshes counts calls of Refresh.
var refreshes atomic.Int64

// Refresh makes every Value of this process check its files at its next use, and not some seconds
// after the last check: the operator has asked for a reload.
func Refresh() { refreshes.Add(1) }

// reporter hears of refused files for which no Value has a reporter of its own.
var reporter atomic.Pointer[func(error)]

// ReportRefused has fn called, once for each version of the files, when files that have changed
// can't be read, so that what was read before stays in force: whoever renewed a certificate must
// not learn of it when the old one ends. It is for the whole process.
func ReportRefused(fn func(error)) { reporter.Store(&fn) }

// Value keeps what was read from files and reads again when one of them changed. A failed
// read keeps the value before, so a half-written file breaks nothing. Safe for concurrent use.
type Value[T any] struct {
	files []string
	load  func() (*T, error)

	mu      sync.Mutex
	value   *T
	stamp   string
	checked time.Time
	asked   int64       // refreshes when the files were checked last
	refused string      // stamp of what was refused last
	report  func(error) // nil: the process's
}

// NewValue makes a Value that load reads from files; without files it is read once.
func NewValue[T any](load func() (*T, error), files ...string) *Value[T] {
	return &Value[T]{load: load, files: files}
}

// OnRefused has fn called once for each version of the files that can't be read.
func (v *Value[T]) OnRefused(fn func(error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report = fn
}

// Get gives the value of the files as they are, or of their last version that could be read.
// Only where there never was one it is an error.
func (v *Value[T]) Get() (*T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := refreshes.Load()
	if v.value != nil && asked == v.asked && time.Since(v.checked) < checkEvery {
		return v.value, nil
	}
	v.checked, v.asked = time.Now(), asked
	stamp := ""
	for _, f := range v.files {
		if st, err := os.Stat(f); err == nil {
			stamp += fmt.Sprint(st.ModTime().UnixNano(), st.Size(), ";")
		}
	}
	if v.value != nil && stamp == v.stamp {
		return v.value, nil
	}
	next, err := v.load()
	switch {
	case err == nil:
		v.value, v.stamp = next, stamp
	case v.value == nil:
		return nil, err
	case v.refused != stamp:
		v.refused = stamp
		if report := reporter.Load(); v.report != nil {
			v.report(err)
		} else if report != nil {
			(*report)(err)
		}
	}
	return v.value, nil
}

// Reload reads the files now; an error keeps the value before.
func (v *Value[T]) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next, err := v.load()
	if err == nil {
		// The files may change between load and a stamp that is taken now. Without a stamp the next
		// check reads them once more.
		v.value, v.stamp, v.checked = next, "", time.Now()
	}
	return err
}
