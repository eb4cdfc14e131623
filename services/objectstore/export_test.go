package objectstore

import "lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"

// UsersOf gives the users by their access key ids, as the service asks for them.
func UsersOf(c Config) (func() map[string]s3api.User, error) { return c.users() }
