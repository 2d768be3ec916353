// Package keys stores the API keys of a host. A key is a random secret shown once; what is kept is one small
// file named by the secret's SHA-256, so that neither a backup nor a stolen disk yields a usable key.
//
//	<dir>/<sha256 of the key, hex>.json   {"id","name","team","prefix","createdAt"}
//
// The directory is the whole truth and any process may change it: a key whose file is gone is refused by the
// very next request.
package keys
