package objectstore

import (
	"bytes"
	"errors"
	"fmt"
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
	v := tlsfile.NewValue(func() (*map[string]s3api.User, error) {
		more, err := readUsers(c.UsersFile)
		if err == nil {
			err = errors.Join(checkUsers(slices.Concat(c.Users, more))...)
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

// readUsers reads a file of users: {"users": [...]}, as in the settings.
func readUsers(file string) ([]User, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var in struct {
		Users []fileUser `yaml:"users"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	var list []User
	for _, u := range in.Users {
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
