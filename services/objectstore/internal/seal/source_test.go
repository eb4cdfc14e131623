package seal

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const secretText = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func TestSources(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	want := testKey(t, "k", 0).Version()
	for what, s := range map[string]Source{
		"hexadecimal":            {ID: "k", File: file("hex", secretText+"\n", 0o600)},
		"read-only":              {ID: "k", File: file("ro", secretText, 0o400)},
		"base64":                 {ID: "k", File: file("b64", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\r\n", 0o600)},
		"base64 without padding": {ID: "k", File: file("raw64", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", 0o600)},
		"a command":              {ID: "k", Command: []string{"echo", secretText}},
	} {
		k, err := s.Load(context.Background())
		if err != nil || k.Version() != want {
			t.Errorf("%s: %v, %v", what, k, err)
		}
	}
	for what, c := range map[string]struct {
		Source
		want string
	}{
		"others may read it":  {Source{ID: "k", File: file("open", secretText, 0o640)}, "want 0600"},
		"others may write it": {Source{ID: "k", File: file("open2", secretText, 0o602)}, "want 0600"},
		"no file":             {Source{ID: "k", File: filepath.Join(dir, "absent")}, "no such file"},
		"a directory":         {Source{ID: "k", File: dir}, "not a regular file"},
		"too short":           {Source{ID: "k", File: file("short", secretText[2:], 0o600)}, "32 bytes"},
		"two lines":           {Source{ID: "k", File: file("two", secretText+"\n"+secretText, 0o600)}, "32 bytes"},
		"too long":            {Source{ID: "k", File: file("long", strings.Repeat("0", maxSecretText+1), 0o600)}, "more than"},
		"a bad id":            {Source{ID: "k/1", Command: []string{"echo", secretText}}, "an id has"},
		"the command fails":   {Source{ID: "k", Command: []string{"sh", "-c", "echo " + secretText + "; echo " + secretText + " >&2; exit 3"}}, "exit status 3"},
		"no such command":     {Source{ID: "k", Command: []string{"/absent/program"}}, "no such file"},
		"much output":         {Source{ID: "k", Command: []string{"sh", "-c", "yes " + secretText}}, "printed more than"},
	} {
		k, err := c.Load(context.Background())
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `key "k`) {
			t.Errorf("%s: %v, %v", what, k, err)
		}
		if err != nil && strings.Contains(err.Error(), secretText[4:20]) {
			t.Errorf("%s: the error has the secret: %v", what, err)
		}
	}
}

// TestCommandsEnd: a command ends with the context that it was run in.
func TestCommandsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := (Source{ID: "k", Command: []string{"sleep", "1000"}}).Load(ctx); err == nil {
		t.Error("a command outlives its context")
	}
}
