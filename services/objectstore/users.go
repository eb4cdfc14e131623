package objectstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"
)

// fileUser is a user of users_file.
type fileUser struct {
	Name        string `yaml:"name"`
	AccessKeyID string `yaml:"access_key_id"`
	Secret      string `yaml:"secret"`
	Policy      string `yaml:"policy"`
}

// users gives the users of the settings and those of users_file, which is read again when it changes. A file that cannot be
// read later leaves the users as they were.
func (c Config) users() (func() map[string]s3api.User, error) {
	if c.UsersFile == "" {
		m := byKey(c.Users)
		return func() map[string]s3api.User { return m }, nil
	}
	f := &usersFile{path: c.UsersFile}
	v := tlsfile.NewValue(func() (*map[string]s3api.User, error) {
		more, err := f.read()
		if err == nil {
			err = errors.Join(checkUsers(slices.Concat(c.Users, more))...)
		}
		if err == nil {
			err = f.take(more)
		}
		if err != nil {
			return nil, fmt.Errorf("users_file %s: %w", c.UsersFile, err)
		}
		m := byKey(slices.Concat(c.Users, more))
		return &m, nil
	}, c.UsersFile)
	if _, err := v.Get(); err != nil {
		return nil, err
	}
	return func() map[string]s3api.User {
		m, _ := v.Get() // a first version was read
		return *m
	}, nil
}

// usersFile is the file of further users. One that is cut off between two users is valid, and would remove those behind it;
// one that is cut off before the policy of its last user would let that user do everything. So a version that lacks users, or
// one, is taken when it is still the same at the next look. With the markers of a document the file says itself that it is whole.
type usersFile struct {
	path    string
	text    []byte // that was read last
	taken   []User // nil: none yet
	doubted []byte // a text that was refused once, because it may be a part
}

// read reads the file: {"users": [...]}, as in the settings.
func (f *usersFile) read() ([]User, error) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, err
	}
	f.text = text
	return parseUsers(text)
}

// take decides about what read gave, which was checked.
func (f *usersFile) take(users []User) error {
	if what := lacking(f.taken, users); what != "" && f.taken != nil && !isMarked(f.text) && !bytes.Equal(f.doubted, f.text) {
		f.doubted = f.text
		return fmt.Errorf("%s: the file may be written at the moment; it is taken if it is the same in some seconds", what)
	}
	f.taken, f.doubted = users, nil
	return nil
}

// lacking says what a version of the file lacks that a whole one may have; "": nothing.
func lacking(before, after []User) string {
	known := map[string]User{}
	for _, u := range before {
		known[u.AccessKeyID] = u
	}
	for i, u := range after {
		was, ok := known[u.AccessKeyID]
		if last := i == len(after)-1; last && u.Policy == "" && (!ok || was.Policy != "") {
			return fmt.Sprintf("user %q has no policy, and so may do everything", u.Name)
		}
		delete(known, u.AccessKeyID)
	}
	for _, u := range known {
		return fmt.Sprintf("%d users are gone, %q among them", len(known), u.Name)
	}
	return ""
}

var (
	errCutLine     = errors.New("the last line has no end: the file was cut off")
	errCutDocument = errors.New(`the document begins with "---" and does not end with "...": the file was cut off`)
	errNoUsers     = errors.New("there is no list of users; an empty one is users: []")
	errMoreYAML    = errors.New("there is something behind the list of users")
)

// isMarked reports whether a text begins with the marker of a document. parseUsers has seen that it has its end then.
func isMarked(text []byte) bool {
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return isMarker(first, "---")
}

func isMarker(line []byte, marker string) bool {
	return string(bytes.TrimRight(line, " \t\r")) == marker
}

// parseUsers reads users, and refuses what can be seen to be a part of a file.
func parseUsers(text []byte) ([]User, error) {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		return nil, errCutLine
	}
	whole := bytes.TrimRight(text, "\n")
	if isMarked(text) && !isMarker(whole[bytes.LastIndexByte(whole, '\n')+1:], "...") {
		return nil, errCutDocument
	}
	var in struct {
		Users *[]fileUser `yaml:"users"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&in); errors.Is(err, io.EOF) {
		return nil, errNoUsers
	} else if err != nil {
		return nil, err
	}
	if in.Users == nil {
		return nil, errNoUsers
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errMoreYAML, err)
	}
	list := []User{}
	for _, u := range *in.Users {
		list = append(list, User{Name: u.Name, AccessKeyID: u.AccessKeyID, Secret: config.Secret(u.Secret), Policy: u.Policy})
	}
	return list, nil
}

// byKey gives users, which were checked, by their access key ids.
func byKey(users []User) map[string]s3api.User {
	m := map[string]s3api.User{}
	for _, u := range users {
		out := s3api.User{Name: u.Name, Secret: u.Secret.Reveal()}
		if u.Policy != "" {
			out.Policy, _ = policy.Parse([]byte(u.Policy), "") // checkUsers parsed it
		}
		m[u.AccessKeyID] = out
	}
	return m
}
