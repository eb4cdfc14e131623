package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
)

// maxSecretBytes bounds the file of a secret: more is another file.
const maxSecretBytes = 64 << 10

// fileSuffix ends the name of the setting that has the file of a secret.
const fileSuffix = "_file"

// ReadSecret reads a secret from a file. One line break at its end, which editors
// add, is no part of it.
func ReadSecret(path string) (Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	// One byte more than the bound, so that a longer file can be told from one at the bound.
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", err
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case len(b) > maxSecretBytes:
		return "", fmt.Errorf("%s has more than %d bytes: no secret", path, maxSecretBytes)
	case s == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(s, "\n\r\x00"):
		return "", fmt.Errorf("%s has more than one line: no secret", path)
	}
	return Secret(s), nil
}

// readSecrets fills every Secret whose setting of the same name and _file is given.
// Exactly one of both may be.
func readSecrets(root reflect.Value, prefix string) error {
	var errs []error
	inspect(root, root, prefix, nil, func(n node) {
		secret, ok := n.val.Addr().Interface().(*Secret)
		if !ok {
			return
		}
		name, _, _ := strings.Cut(n.field.Tag.Get("koanf"), ",")
		path := lookUp(n.parent, name+fileSuffix)
		switch {
		case !path.IsValid() || path.String() == "":
		case *secret != "":
			errs = append(errs, fmt.Errorf("%s and %s%s: want one of both", n.path, n.path, fileSuffix))
		default:
			s, err := ReadSecret(path.String())
			if err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", n.path, fileSuffix, err))
			}
			*secret = s
		}
	}, func(string, reflect.Value) {})
	return errors.Join(errs...)
}
