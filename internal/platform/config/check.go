package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"reflect"
	"strconv"
)

// Checker is a part of the settings whose validity depends on more than its text, such as files that
// must exist and fit together. Check is called wherever the part is in the settings, by
// --config.check and at every start and reload.
type Checker interface{ Check() error }

// check collects all faults for which a start would refuse the settings.
func check(root, defaults reflect.Value, prefix string, cfg any) error {
	var errs []error
	said := map[string]bool{} // a struct also has the Check of what it embeds, which would report twice
	inspect(root, defaults, prefix, nil,
		func(n node) { errs = append(errs, n.checkEffect(), n.checkFinite(), n.checkForm()) },
		func(path string, v reflect.Value) {
			if c, ok := v.Interface().(Checker); ok {
				if err := c.Check(); err != nil && !said[path+err.Error()] {
					said[path+err.Error()] = true
					errs = append(errs, fmt.Errorf("%s: %w", path, err))
				}
			}
		})
	if v, ok := cfg.(Validator); ok {
		errs = append(errs, v.Validate())
	}
	return errors.Join(errs...)
}

// checkEffect refuses a setting that differs from its default and has no effect, because something
// that it needs is off: whoever wrote it believes that it is in force.
func (n node) checkEffect() error {
	if isEmpty(n.val) && isEmpty(n.def) || reflect.DeepEqual(n.val.Interface(), n.def.Interface()) {
		return nil
	}
	for _, c := range n.needs {
		if !c.met {
			return fmt.Errorf("%s has no effect: %s", n.path, c.text)
		}
	}
	return nil
}

// checkFinite refuses NaN and infinity, for which every comparison with a bound is false, so that
// they would pass most checks of ranges.
func (n node) checkFinite() error {
	if n.val.Kind() != reflect.Float64 {
		return nil
	}
	if v := n.val.Float(); math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%s: %v is not a finite number", n.path, v)
	}
	return nil
}

// checkForm checks the text of a setting against its check tag.
func (n node) checkForm() error {
	kind := n.field.Tag.Get("check")
	if kind == "" {
		return nil
	}
	fn, ok := textChecks[kind]
	if !ok {
		panic(fmt.Sprintf("config: %s: no check %q", n.path, kind))
	}
	texts := []string{}
	switch v := n.val.Interface().(type) {
	case string:
		texts = append(texts, v)
	case []string:
		texts = v
	}
	var errs []error
	for i, text := range texts {
		// An unset string has no form to check.
		if text == "" && n.val.Kind() == reflect.String {
			continue // whether it may be empty is for Validate to say
		}
		if err := fn(text); err != nil {
			path := n.path
			if n.val.Kind() == reflect.Slice {
				path = fmt.Sprintf("%s[%d]", path, i)
			}
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// textChecks are the values of the check tag.
var textChecks = map[string]func(string) error{
	"listen":  CheckListen,
	"address": CheckAddress,
	"file":    checkFile,
	"dir":     checkDir,
}

// CheckListen wants host:port, the host empty for all addresses, the port 0 for a free one.
func CheckListen(s string) error { return checkHostPort(s, 0, true) }

// CheckAddress wants host:port of a server to connect to.
func CheckAddress(s string) error { return checkHostPort(s, 1, false) }

func checkHostPort(s string, least int, any bool) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q: want host:port, without a scheme: %w", s, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < least || n > 65535 {
		return fmt.Errorf("%q: want host:port, the port a number of %d to 65535", s, least)
	}
	if host == "" && !any {
		return fmt.Errorf("%q: want host:port, the host is empty", s)
	}
	return nil
}

// checkFile wants a file that can be read.
func checkFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return err // a directory
	}
	return nil
}

// checkDir wants a directory, or a name that nothing has yet: services make theirs.
func checkDir(path string) error {
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return fmt.Errorf("%s is no directory", path)
	}
	return nil
}
